// LaTeX in Markdown: finds it before Markdown reads its backslashes, underscores and asterisks, and shows it as MathML.
// Without KaTeX, and if KaTeX does not know a command, the LaTeX is shown as it is written.
const LONGEST_MATH = 4000;  // characters of one formula
const MATH_SPACE = "http://www.w3.org/1998/Math/MathML";
const MATH_TAGS = ["span", "math", "menclose", "merror", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded",
  "mphantom", "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext",
  "mtr", "munder", "munderover"];
const MATH_ATTRIBUTES = ["accent", "accentunder", "columnalign", "columnlines", "columnspacing", "depth", "display",
  "displaystyle", "fence", "height", "largeop", "linebreak", "linethickness", "lspace", "mathbackground", "mathcolor",
  "mathvariant", "maxsize", "minsize", "notation", "rowlines", "rowspacing", "rspace", "scriptlevel", "separator",
  "stretchy", "symmetric", "voffset", "width"];
const MATH_PURIFY = {ALLOWED_TAGS: MATH_TAGS, ALLOWED_ATTR: MATH_ATTRIBUTES, ADD_URI_SAFE_ATTR: MATH_ATTRIBUTES,
  ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, IN_PLACE: true};

// ---- Finding it

// A paragraph's code, addresses and escapes, which contain no LaTeX, then formulas in \( \), \[ \], $$ $$ and $ $.
// Between single signs there is no space at the edges, and no letter or digit follows: "$5 and $10" are prices.
const INLINE_MATH = new RegExp(["(`+)(?:(?!`)[^]*?[^`]\\1(?!`))?", "https?://[^\\s<>()]+",
  "(\\\\\\((?:[^\\\\]|\\\\[^)])+?\\\\\\)|\\\\\\[(?:[^\\\\]|\\\\[^\\]])+?\\\\\\])", "\\\\[^(\\[]",
  "(\\$\\$(?:[^\\\\$]|\\\\[^])+?\\$\\$)", "(\\$(?![\\s$])(?:[^\\s\\\\$`]|\\s(?!\\$)|\\\\[^`])+?\\$(?![\\w$]))",
  "\\$+", "(\\\\[(\\[])"].join("|"), "g");
const PRICE = /^\$\d[\d.,]*[kKmMbB]?\s*(?:[a-z]{3,}|[.!?;:)*_–—]+\s)/;  // "$5 each, or 4$"
// A formula on its own lines, which may contain lines that look like Markdown.
const BLOCK_MATH = new RegExp(("^ {0,3}(\\$\\$(?:[^\\\\$]|\\\\[^]){1,N}?\\$\\$|\\\\\\[[^]{1,N}?\\\\\\]|" +
  "\\\\begin\\{([a-zA-Z]+\\*?)\\}[^]{1,N}?\\\\end\\{\\2\\})([.,;:]?)[ \\t]*(?:\\n+|$)").replaceAll("N", LONGEST_MATH));
const OPEN_BLOCK_MATH = /^ {0,3}(?:\$\$|\\\[|\\begin\{[a-zA-Z]+\*?\})/;
const BLOCK_MATH_START = /\n {0,3}(?:\$\$|\\\[|\\begin\{)/;

// Replaces formulas in a paragraph by marks: "\uE000", the index in `found`, "\uE001". In a reply that grows, the end
// of the last formula may not have come.
function hideMath(source, found, live) {
  const hide = text => "\uE000" + (found.push(text) - 1) + "\uE001";
  const open = live && [...source.matchAll(INLINE_MATH)].find(match => match[5] || match[0] === "$$");
  const all = open ? source.slice(0, open.index) : source, rest = open ? hide(source.slice(open.index)) : "";
  return all.replace(INLINE_MATH, (match, code, brackets, dollars, dollar, lone, at) => {
    const isMath = brackets || dollars || lone || (dollar && !PRICE.test(dollar) && !/\w/.test(all[at - 1] || ""));
    return isMath ? hide(match) : match;
  }) + rest;
}
// Puts the formulas back into markup.
const unhideMath = (html, found) => html.replace(/\uE000(\d+)\uE001/g, (mark, i) => escapeHtml(found[i] || ""));
const plainOfMarks = text => text.replace(/[\uE000\uE001]/g, "\uFFFD");

const MATH_EXTENSIONS = [{
  name: "math", level: "inline",
  start: source => { const at = source.indexOf("\uE000"); return at < 0 ? undefined : at; },
  tokenizer(source) {
    const match = /^\uE000(\d+)\uE001/.exec(source);
    return match ? {type: "math", raw: match[0]} : undefined;
  },
  renderer: token => '<span class="math">' + token.raw + "</span>",
}, {
  name: "mathBlock", level: "block",
  start(source) {
    const end = source.indexOf("\n\n");  // of the paragraph: it need not look further
    const match = BLOCK_MATH_START.exec(end < 0 ? source : source.slice(0, end));
    return match ? match.index + 1 : undefined;
  },
  tokenizer(source) {
    const match = BLOCK_MATH.exec(source) ||
      (this.lexer.live && source.length < LONGEST_MATH && OPEN_BLOCK_MATH.test(source) && /^[^]*$/.exec(source));
    if (!match) return undefined;
    return {type: "mathBlock", raw: match[0], formula: match[1] || match[0].trim(), after: match[3] || ""};
  },
  renderer: ({formula, after}) => '<p><span class="math">' + escapeHtml(formula) + "</span>" + escapeHtml(after) + "</p>",
}];

// ---- Showing it

// Letters that browsers do not style by mathvariant: the first of each alphabet, and letters that are elsewhere.
const ALPHABETS = {
  "double-struck": [0x1D538, 0x1D552, {C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ"}],
  script: [0x1D49C, 0x1D4B6, {B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ",
    o: "ℴ"}],
  fraktur: [0x1D504, 0x1D51E, {C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ"}],
};
function letterOf(c, [upper, lower, others]) {
  if (!/^[A-Za-z]$/.test(c)) return c;
  return others[c] || String.fromCodePoint(c < "a" ? upper + c.charCodeAt(0) - 65 : lower + c.charCodeAt(0) - 97);
}
function styleLetters(box) {
  for (const e of box.querySelectorAll("[mathvariant]")) {
    const alphabet = ALPHABETS[e.getAttribute("mathvariant")];
    if (!alphabet || e.children.length) continue;
    e.textContent = [...e.textContent].map(c => letterOf(c, alphabet)).join("");
    e.setAttribute("mathvariant", "normal");
  }
}
// Browsers do not align the columns of a table by its attributes, so each cell gets classes for its style.
function alignColumns(box) {
  for (const table of box.querySelectorAll("mtable")) {
    const [aligns, gaps] = ["columnalign", "columnspacing"].map(name => (table.getAttribute(name) || "").split(" "));
    for (const row of table.children) {
      [...row.children].forEach((cell, i) => {
        if (["left", "right"].includes(aligns[i])) cell.classList.add(aligns[i]);
        if (gaps[i] === "0em") cell.classList.add("joined");
      });
    }
  }
}
// The elements of a formula, or null. The latest are kept, because a reply that grows shows the same formulas again.
const knownMath = new Map(), MOST_KNOWN_MATH = 500;
function mathElements(source) {
  if (typeof katex !== "object" || source.length > LONGEST_MATH) return null;
  if (knownMath.has(source)) return knownMath.get(source).cloneNode(true);
  const isBlock = /^(?:\$\$|\\\[|\\begin)/.test(source);
  const tex = source.startsWith("\\begin") ? source : source.replace(/^(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])$/g, "");
  const box = element("span");
  try {
    katex.render(tex, box, {output: "mathml", displayMode: isBlock, throwOnError: true, strict: "ignore", trust: false,
      maxSize: 20, maxExpand: 300});
    // KaTeX adds the source as an annotation next to the formula.
    box.querySelectorAll("semantics").forEach(e => e.replaceWith(e.firstElementChild));
    DOMPurify.sanitize(box, MATH_PURIFY);
  } catch {
    return null;
  }
  const math = box.querySelector("math");
  if (!math || math.namespaceURI !== MATH_SPACE || math.querySelector("merror")) return null;
  styleLetters(math);
  alignColumns(math);
  if (knownMath.size >= MOST_KNOWN_MATH) knownMath.delete(knownMath.keys().next().value);
  knownMath.set(source, math);
  return math.cloneNode(true);
}
function showMath(span) {
  const source = span.textContent, math = mathElements(source);
  span.className = math && math.getAttribute("display") === "block" ? "math display" : "math";
  if (!math) return;
  span.title = source;
  span.replaceChildren(math);
}
