// Colours of code: Prism divides the text, and this file makes an element of each part that has a colour.
const LONGEST_COLOURED = 20000;  // characters; the rest of a longer text has no colours
const OTHER_NAMES = {"c++": "cpp", "c#": "csharp", h: "c", hpp: "cpp", cc: "cpp", cuda: "cpp", cu: "cpp", golang: "go",
  rs: "rust", zsh: "bash", console: "bash", shellsession: "bash", jsonc: "json", json5: "json", node: "javascript",
  mjs: "javascript", python3: "python", ps1: "powershell", pl: "perl", make: "makefile", patch: "diff",
  proto: "protobuf"};
// The class of a part, by Prism's name for it. Parts without one have the colour of text.
const KINDS = {keyword: "keyword", boolean: "keyword", atrule: "keyword", rule: "keyword", macro: "keyword",
  directive: "keyword", important: "keyword", tag: "keyword", selector: "keyword", null: "keyword",
  instruction: "keyword",
  string: "string", char: "string", "attr-value": "string", regex: "string", "template-string": "string", url: "string",
  "triple-quoted-string": "string", "string-literal": "string", heredoc: "string",
  comment: "comment", prolog: "comment", doctype: "comment", cdata: "comment", shebang: "comment",
  number: "number", constant: "number", unit: "number",
  function: "function", "function-name": "function", decorator: "function", annotation: "function", method: "function",
  "class-name": "type", builtin: "type", symbol: "type", property: "type", "attr-name": "type", key: "type",
  variable: "type", table: "type", target: "type", section: "type",
  inserted: "inserted", "inserted-sign": "inserted", deleted: "deleted", "deleted-sign": "deleted"};

function grammarOf(language) {
  if (typeof Prism !== "object" || !language) return null;
  const lower = language.toLowerCase();
  const name = Object.hasOwn(OTHER_NAMES, lower) ? OTHER_NAMES[lower] : lower;
  const grammar = Object.hasOwn(Prism.languages, name) && Prism.languages[name];
  return grammar && typeof grammar === "object" ? grammar : null;
}
function appendParts(into, parts) {
  for (const part of [].concat(parts)) {
    if (typeof part === "string") {
      into.append(part);
      continue;
    }
    const kind = Object.hasOwn(KINDS, part.type) && KINDS[part.type];
    const box = kind ? element("span", kind) : into;
    if (kind) into.append(box);
    appendParts(box, part.content);
  }
}
// Shows the text of a code block.
function colourCode(code, text, language) {
  const grammar = grammarOf(language), parts = document.createDocumentFragment();
  try {
    if (grammar) appendParts(parts, Prism.tokenize(text.slice(0, LONGEST_COLOURED), grammar));
  } catch {
    parts.replaceChildren();
  }
  parts.append(text.slice(parts.textContent.length));
  code.replaceChildren(parts);
}
