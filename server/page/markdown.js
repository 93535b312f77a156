// Turns a reply's Markdown into elements. marked reads it, and DOMPurify allows only what is listed here. HTML from the
// model is shown as text, nothing is fetched, and links lead only to the web.
const TAGS = ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
  "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"];
const PURIFY = {ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["align", "class", "href", "start", "title"], ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false, ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i, ADD_URI_SAFE_ATTR: ["align", "start"],
  RETURN_DOM_FRAGMENT: true};
// Characters. A longer text or paragraph is shown without formatting, because the time to read emphasis grows with the
// square of the length.
const LONGEST_MARKDOWN = 100000, LONGEST_PARAGRAPH = 4000;

// DOMPurify 2.4.1+dfsg+~2.4.0-2+deb12u1 (Debian 12) reads this name without declaring it; other versions do not use it.
const shadowNode = {__depth: 0};

const escapeHtml = text => text.replace(/[&<>"']/g, c => "&#" + c.charCodeAt(0) + ";");
const RENDERER = {
  html: html => escapeHtml(html.trimEnd()).replaceAll("\n", "<br>"),
  image: (href, title, text) => '<a href="' + escapeHtml(href || "") + '">' + escapeHtml(text || href || "") + "</a>",
  checkbox: checked => (checked ? "☑ " : "☐ "),
};
// marked reads a block of code without an end only if its last line is complete. This reads it whatever its last line.
const FENCE = /^( {0,3})(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})([^\n]*)(?:\n|$)/;
const TOKENIZER = {
  fences(source) {
    const match = FENCE.exec(source);
    if (!match) return false;
    const [line, indent, fence, language] = match, text = source.slice(line.length);
    if (new RegExp("^ {0,3}" + fence + "[`~]* *$", "m").test(text)) return false;  // it has an end
    const outdented = indent ? text.replace(new RegExp("^" + " {0," + indent.length + "}", "gm"), "") : text;
    return {type: "code", raw: source, lang: language.trim(), text: outdented.replace(/\n$/, "")};
  },
};
const hasMarkdown = () => typeof marked === "object" && typeof DOMPurify === "function";
if (hasMarkdown()) {
  marked.use({renderer: RENDERER, tokenizer: TOKENIZER, extensions: MATH_EXTENSIONS, gfm: true, breaks: true,
    mangle: false, headerIds: false});
}
// The end of a text that grows, if the next characters decide what it is: the marks of code, of a heading or of a line.
const UNDECIDED = /(?:^|\n)[ \t>]*(?:`{1,2}|`{3,}[^`\n]*|~+[^~\n]*|-+|=+|#+|\*{1,2})[ \t]*$/;

// The blocks of a text: [{key, html}], and its links. With the same links, blocks with the same key look the same.
function markdownBlocks(text, live) {
  class Lexer extends marked.Lexer {
    inlineTokens(source, tokens = []) {
      if (source.length <= LONGEST_PARAGRAPH) return super.inlineTokens(hideMath(source, found, live), tokens);
      tokens.push({type: "text", raw: source, text: escapeHtml(source)});
      return tokens;
    }
  }
  const found = [], lexer = new Lexer(marked.defaults);
  lexer.live = live;
  const tokens = lexer.lex(plainOfMarks(live ? text.replace(UNDECIDED, "") : text));
  const blocks = tokens.filter(t => t.type !== "space" && t.type !== "def").map(token => ({
    key: token.type + token.raw,
    html: () => unhideMath(marked.Parser.parse([token], marked.defaults), found),
  }));
  return {blocks, links: JSON.stringify(tokens.links || {})};
}

function codeBlock(pre) {
  const code = pre.firstElementChild;
  const language = code && (/^language-(\S+)$/.exec(code.className) || [])[1];
  const block = element("div", "code"), head = element("div", "head");
  head.append(element("span", "", language || ""), copyButton(() => pre.textContent.replace(/\n$/, "")));
  if (code) {
    code.removeAttribute("class");
    colourCode(code, code.textContent, language);
  }
  pre.replaceWith(block);
  block.append(head, pre);
}
// Makes the elements of blocks, all at once, because DOMPurify takes long to begin. An empty element ends each block.
const BLOCK_END = '<p class="end"></p>';
function makeElements(blocks) {
  if (!blocks.length) return;
  const fragment = DOMPurify.sanitize(blocks.map(block => block.html() + BLOCK_END).join(""), PURIFY);
  const others = fragment.querySelectorAll("[class]:not(pre > code):not(span.math):not(p.end)");
  others.forEach(e => e.removeAttribute("class"));
  fragment.querySelectorAll("span.math").forEach(showMath);
  fragment.querySelectorAll("pre").forEach(codeBlock);
  fragment.querySelectorAll("table").forEach(table => {
    const box = element("div", "table");
    table.replaceWith(box);
    box.append(table);
  });
  fragment.querySelectorAll("a").forEach(a => { a.target = "_blank"; a.rel = "noopener noreferrer nofollow"; });
  let at = 0;
  blocks.forEach(block => { block.nodes = []; });
  for (const node of fragment.childNodes) {
    if (node.className === "end") at += 1;
    else blocks[Math.min(at, blocks.length - 1)].nodes.push(node);
  }
}
// Changes elements into others, but leaves what is the same: code that grows stays in its place and does not flicker.
function patch(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh), fresh;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  patchAll([...old.childNodes], [...fresh.childNodes], node => old.append(node));
  return old;
}
function patchAll(old, fresh, add) {
  const shown = fresh.map((node, i) => (old[i] ? patch(old[i], node) : (add(node), node)));
  old.slice(fresh.length).forEach(node => node.remove());
  return shown;
}
// Shows the text. Blocks that `into` shows already are left as they are. `live`: the text grows.
function showMarkdown(into, text, live = false) {
  const before = into.blocks || [];
  let blocks, links, same = 0;
  try {
    if (!hasMarkdown() || text.length > LONGEST_MARKDOWN) throw new RangeError();
    ({blocks, links} = markdownBlocks(text, live));
    const most = links === into.links ? Math.min(before.length, blocks.length) : 0;
    while (same < most && before[same].key === blocks[same].key) {
      blocks[same].nodes = before[same].nodes;
      same += 1;
    }
    makeElements(blocks.slice(same));
  } catch {  // deep nesting overflows the browser's stack in marked
    into.blocks = [];
    into.replaceChildren(element("div", "plain", text));
    return;
  }
  if (!before.length) into.replaceChildren();
  if (live && before[same] && blocks[same]) {
    before.slice(same + 1).forEach(block => block.nodes.forEach(node => node.remove()));
    blocks[same].nodes = patchAll(before[same].nodes, blocks[same].nodes, node => into.append(node));
    same += 1;
  } else {
    before.slice(same).forEach(block => block.nodes.forEach(node => node.remove()));
  }
  blocks.slice(same).forEach(block => into.append(...block.nodes));
  into.blocks = blocks.map(({key, nodes}) => ({key, nodes}));
  into.links = links;
}
