// Turns a reply's Markdown into elements. marked reads it, and DOMPurify allows only what is listed here. HTML from the
// model is shown as text, nothing is fetched, and links lead only to the web.
const TAGS = ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
  "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"];
const PURIFY = {ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["align", "class", "href", "start", "title"], ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false, ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i, RETURN_DOM_FRAGMENT: true};
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
const hasMarkdown = () => typeof marked === "object" && typeof DOMPurify === "function";
if (hasMarkdown()) marked.use({renderer: RENDERER, gfm: true, breaks: true, mangle: false, headerIds: false});

function markdownToHtml(text) {
  class Lexer extends marked.Lexer {
    inlineTokens(source, tokens = []) {
      if (source.length <= LONGEST_PARAGRAPH) return super.inlineTokens(source, tokens);
      tokens.push({type: "text", raw: source, text: escapeHtml(source)});
      return tokens;
    }
  }
  return marked.Parser.parse(new Lexer(marked.defaults).lex(text), marked.defaults);
}

function codeBlock(pre) {
  const code = pre.firstElementChild;
  const language = code && (/^language-(\S+)$/.exec(code.className) || [])[1];
  const block = element("div", "code"), head = element("div", "head");
  head.append(element("span", "", language || ""), copyButton(() => pre.textContent.replace(/\n$/, "")));
  if (code) code.removeAttribute("class");
  pre.replaceWith(block);
  block.append(head, pre);
}
function showMarkdown(into, text) {
  let fragment;
  try {
    if (!hasMarkdown() || text.length > LONGEST_MARKDOWN) throw new RangeError();
    fragment = DOMPurify.sanitize(markdownToHtml(text), PURIFY);
  } catch {  // deep nesting overflows the browser's stack in marked
    into.replaceChildren(element("div", "plain", text));
    return;
  }
  fragment.querySelectorAll("[class]:not(pre > code)").forEach(e => e.removeAttribute("class"));
  fragment.querySelectorAll("pre").forEach(codeBlock);
  fragment.querySelectorAll("table").forEach(table => {
    const box = element("div", "table");
    table.replaceWith(box);
    box.append(table);
  });
  fragment.querySelectorAll("a").forEach(a => { a.target = "_blank"; a.rel = "noopener noreferrer nofollow"; });
  into.replaceChildren(fragment);
}
