#!/usr/bin/env python3
"""Tests how the chat page shows replies: code, LaTeX, tables, errors. Skipped if there is no browser.

    page_reply_test.py BINARY
"""

from browser import ENTER
from page_support import FAKE_SERVER, IDLE, PageTestCase
from support import Server, main

TEXT = "text:\n```python\ndef f(x):\n    return `x` - 1  # ok\n```\n\nafter **bold**"
CODE = "def f(x):\n    return `x` - 1  # ok"
# Shows each beginning of a text as a reply that grows. Returns what a user sees that is not right: [beginning, fault].
GROW = """
const [text, opening, code] = arguments, box = element("div", "text"), faults = [];
document.getElementById("log").replaceChildren(box);
let first = null, begun = text.indexOf(opening) + opening.length;
for (let end = 1; end <= text.length; end += 1) {
  const part = text.slice(0, end), fault = what => faults.push([part, what, box.innerHTML]);
  showMarkdown(box, part, true);
  const pre = box.querySelector("pre");
  if (/```|~~~/.test(box.textContent)) fault("marks are shown");
  if (box.querySelector("h1, h2, hr")) fault("a heading or line");
  if (end < begun) continue;
  if (!pre) { fault("no code"); continue; }
  first = first || pre;
  if (pre !== first) fault("another element");
  const shown = pre.textContent.replace(/\\n$/, "");
  if (!code.startsWith(shown) || shown.length < Math.min(code.length, end - begun) - 9) fault("the code is " + shown);
  if (box.querySelectorAll("pre").length > 1 || box.querySelector("p > code")) fault("other code");
}
return faults;"""
MATHS = [  # LaTeX, and whether it is a block
    (r"$a_1 * b_2 * c$", False), (r"\(x_{1}*y_{2}\)", False), (r"$$\sum_{i=1}^n i_*$$", True), (r"\[ \frac{a_1}{b_1} \]", True),
    ("$$\n\\begin{aligned}\na &= b \\\\\n  &= c\n\\end{aligned}\n$$", True), ("\\[\nx\n= y\n\\]", True),
    ("\\begin{align*}\na &= b_1*c_1 \\\\\nd &= e\n\\end{align*}", True), (r"$\$5 < \alpha$", False), (r"$\{a\,b\}$", False)]
PRICES = ["It costs $5 and $10.", "from $5-$10, or **$20**/$30", "a $100 bill, or a 50$ bill", "$HOME and $PATH", "US$5 or A$ 6", "A $ sign, $ and $",
          "$5 each (or 4$ for two)", r"\$5 and \$6"]
# Returns every element and attribute of formulas that is not on the list.
MATH_FAULTS = """
const faults = [];
for (const e of document.querySelectorAll("#log math, #log math *")) {
  if (e.namespaceURI !== "http://www.w3.org/1998/Math/MathML" || !MATH_TAGS.includes(e.tagName)) faults.push(e.outerHTML);
  for (const a of e.attributes) if (![...MATH_ATTRIBUTES, "class"].includes(a.name)) faults.push(a.name + "=" + a.value);
}
if (document.querySelector("#log a, #log img, #log script, #log style, #log iframe")) faults.push("an element");
return faults;"""
HOSTILE_MATH = [
    r"$\href{javascript:window.hacked=1}{x}$", r"$\url{javascript:window.hacked=1}$", r"$\includegraphics{http://evil.example/x.png}$",
    r"$\htmlStyle{background:url(http://evil.example/x)}{x}$", r"$\htmlData{a=b}{x}$", r"$\text{<img src=x onerror=window.hacked=1>}$",
    r"$\def\a{\a\a}\a$", r"$\rule{1000000em}{1000000em}$", r"$\color{red}x \colorbox{red}{y} \fbox{z}$", r"$\unicode{x3c}script\unicode{x3e}$",
    "$" + "{" * 1500 + "x" + "}" * 1500 + "$", "$" + "\\sqrt" * 700 + "x$", r"$\def\a#1{#1#1#1#1}\a{\a{\a{\a{\a{\a{x}}}}}}$"]


class Replies(PageTestCase):
    # ---- Code

    def test_code_that_streams_is_code_at_once(self):
        b = self.browser
        for text, opening, code in [
                (TEXT, "```python\n", CODE), (TEXT.replace("```", "~~~"), "~~~python\n", CODE), (TEXT.replace("python", ""), "```\n", CODE),
                ("1. do\n   ```js\n   let a\n   = 1\n   ```\n2. done", "```js\n   ", "let a\n= 1"), ("> ```c\n> int a;\n> -\n> b\n", "```c\n> ", "int a;\n-\nb"),
                ("````md\na\n```\nb\n```\nc\n````\n", "````md\n", "a\n```\nb\n```\nc")]:
            faults = b.script(GROW, text, opening, code)
            if "\n```\nb" in code:
                faults = [x for x in faults if x[1] != "marks are shown"]
            self.assertEqual(faults[:3], [], text)
        self.show("```python\nprint(1)\nprint(")  # a reply that was cut
        self.assertEqual((self.text(".shown pre"), self.texts(".shown p")), ("print(1)\nprint(", []))

    def test_a_reply_grows_without_flicker(self):
        b = self.browser
        self.begin()
        self.say("First.\n\n```py\nfor i in ran")
        b.wait("document.querySelector('.message.assistant pre')")
        b.script("window.kept = [...document.querySelectorAll('.message.assistant p, .message.assistant pre')]")
        self.say("ge(3):\n    print(i)")
        b.wait("document.querySelector('.message.assistant pre').textContent.includes('print')")
        self.assertEqual(self.text(".message.assistant pre"), "for i in range(3):\n    print(i)")
        self.say("\n```\n\nEnd *soon*")
        b.wait("document.querySelector('.message.assistant em')")
        self.finish()
        self.assertEqual(b.script("return window.kept.map(e => e.isConnected)"), [True, True])
        self.assertEqual(self.texts(".message.assistant > .text > *"), ["First.", "pyCopyfor i in range(3):\n    print(i)", "End soon"])

    def test_a_reply_that_grows_ends_like_one_that_is_complete(self):
        text = ("# T\n\n[a][r] and $x$\n\n- one\n- two\n\n  ```js\n  1\n  ```\n\n|a|b|\n|-|-|\n|1|2|\n\n" + TEXT + "\n\n[r]: https://example.org\n\n"
                "$$\ny\n$$\n\n---\n> q\n\n```\nopen\n``")
        same = self.browser.script("""
            const grown = element("div"), whole = element("div");
            for (let end = 1; end <= arguments[0].length; end += 1) showMarkdown(grown, arguments[0].slice(0, end), true);
            showMarkdown(grown, arguments[0]);
            showMarkdown(whole, arguments[0]);
            return [grown.innerHTML, whole.innerHTML];""", text)
        self.assertEqual(*same)

    def test_code_has_colours(self):
        b = self.browser
        for language, code, parts in [
                ("python", "def f():  # note\n    return 'x' + 1", {"keyword": "return", "comment": "# note", "string": "'x'", "number": "1", "function": "f"}),
                ("C++", "class A {}; // n\nint b = 1;", {"keyword": "int", "type": "A", "comment": "// n"}),
                ("html", "<p class=\"a\">b</p>", {"type": "class"}), ("diff", "+a\n-b", {"inserted": "+a", "deleted": "-b"}),
                ("json", '{"a": true}', {"type": '"a"', "keyword": "true"}), ("sh", "if true; then echo $A; fi", {"keyword": "then"}),
                ("rust", "fn main() { let x = 1; }", {"keyword": "let"}), ("sql", "SELECT a FROM b", {"keyword": "FROM"})]:
            self.show("```%s\n%s\n```" % (language, code))
            self.assertEqual(self.text(".shown pre"), code)
            for kind, text in parts.items():
                self.assertIn(text, [x.strip() for x in self.texts(".shown pre ." + kind)], (language, kind))
        for language in ["", "unknown", "constructor", "__proto__", "extend", "toString"]:
            self.show("```%s\nif 1\n```" % language)
            self.assertEqual((self.text(".shown pre"), self.texts(".shown pre span")), ("if 1", []), language)
        long = "x = 1\n" * 9000  # the end of a long text has no colours, but is there
        self.show("```py\n" + long + "```")
        self.assertEqual(self.text(".shown pre"), long.strip())

    def test_colours_fit_light_and_dark(self):
        b = self.browser
        self.show("```js\nreturn 'a'; // b\n```")
        seen = {}
        for theme in ["light", "dark"]:
            b.script("document.documentElement.dataset.theme = arguments[0]", theme)
            seen[theme] = b.script("""
                const light = e => getComputedStyle(e).color.match(/\\d+/g).slice(0, 3).reduce((a, x) => a + Number(x), 0);
                return [...document.querySelectorAll('.shown pre span')].map(light)""")
        self.assertTrue(len(seen["light"]) >= 3 and all(a < 384 < z for a, z in zip(seen["light"], seen["dark"])), seen)

    def test_without_prism_and_katex_it_is_text(self):
        self.browser.script("delete window.katex; window.Prism = undefined")
        self.show("```python\nreturn 1\n```\n\n$a_1*b_1*c$ and \\(x_1\\)")
        self.assertEqual((self.text(".shown pre"), self.texts(".shown pre span")), ("return 1", []))
        self.assertEqual(self.text(".shown p"), "$a_1*b_1*c$ and \\(x_1\\)")

    # ---- LaTeX

    def test_latex_is_mathml(self):
        b = self.browser
        b.errors()  # forgets the errors of other tests
        for source, is_block in MATHS:
            for text in [source, "before *it*\n\n" + source + "\n\nafter", "- item\n\n  " + source.replace("\n", "\n  ")]:
                self.show(text)
                got = b.script("return [...document.querySelectorAll('.shown math')].map(e => [e.namespaceURI, e.getAttribute('display') === 'block'])")
                self.assertEqual(got, [["http://www.w3.org/1998/Math/MathML", is_block]], text + b.script("return document.querySelector('.shown').innerHTML"))
                self.assertEqual(b.script(MATH_FAULTS), [], text)
                self.assertNotIn("\\", self.text(".shown"))
        self.show("**Note $a*b$:** see `$x$`, `\\(y\\)` and https://example.org/$a$ in $\\mathbb{R}$ and |$z$|.\n\n```\n$q$\n```")
        self.assertEqual(self.texts(".shown math"), ["a∗b", "ℝ", "z"])
        self.assertEqual(self.texts(".shown p code") + [self.text(".shown pre")], ["$x$", "\\(y\\)", "$q$"])
        self.assertEqual(b.errors(), [])

    def test_prices_are_text(self):
        for text in PRICES:
            self.show(text)
            self.assertEqual(self.texts(".shown .math"), [], text)
            self.assertEqual(self.text(".shown"), text.replace("**", "").replace("\\", ""))

    def test_latex_that_is_not_known_stays_as_it_is(self):
        for text in [r"$\unknown_a{x_1}*y*$", r"\[ \frac{a_1}{ \]", r"\(a_1*b_1*\frac\)", "$$\n\\begin{none}\na_1*b*c\n\\end{none}\n$$"]:
            self.show(text)
            self.assertEqual((self.text(".shown"), self.texts(".shown math, .shown em")), (text, []))

    def test_latex_that_streams_is_verbatim_until_it_is_complete(self):
        faults = self.browser.script("""
            const box = element("div", "text"), faults = [];
            document.getElementById("log").replaceChildren(box);
            for (const text of arguments[0]) {
              for (let end = 1; end <= text.length; end += 1) {
                const part = text.slice(0, end);
                showMarkdown(box, part, true);
                const hasMath = box.querySelector("math"), shown = box.textContent.trimEnd();
                if (box.querySelector("em, h1, h2, li, code, br")) faults.push([part, box.innerHTML]);
                if (!hasMath && end > 3 && !part.startsWith(shown)) faults.push([part, shown]);
                if (end === text.length && !hasMath) faults.push([part, shown]);
              }
            }
            return faults;""", [source for source, _ in MATHS if not source.startswith("$a") and not source.startswith("$\\")])
        self.assertEqual(faults[:3], [])

    def test_hostile_latex_does_nothing(self):
        b = self.browser
        for text in [*HOSTILE_MATH, " ".join(HOSTILE_MATH[:10])]:
            took = b.script("const begin = performance.now(); document.getElementById('log').replaceChildren(element('div', 'shown'));"
                            "showMarkdown(document.querySelector('.shown'), arguments[0]); return performance.now() - begin", text)
            self.assertLess(took, 20000, text[:40])
            self.assertEqual(b.script(MATH_FAULTS), [], text[:60])
        self.assertEqual(b.script("return window.hacked"), None)
        fetched = b.script("return performance.getEntriesByType('resource').map(e => e.name)")
        self.assertEqual([x for x in fetched if not x.startswith(self.url)], [])
        # The sanitiser alone, as if KaTeX passed everything.
        b.script("""katex.render = (tex, box) => {
            const math = document.createElementNS(MATH_SPACE, "math"), a = document.createElementNS(MATH_SPACE, "mrow"), i = document.createElement("img");
            a.setAttribute("href", "javascript:window.hacked=1");
            math.append(a, i);
            box.append(math); }""")
        self.show("$evil$")
        self.assertEqual(self.browser.script("return document.querySelector('.shown math').innerHTML"), "<mrow></mrow>")

    # ---- Tables

    def test_words_of_table_cells_stay_whole(self):
        b = self.browser
        b.devtools("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        self.addCleanup(b.devtools, "Emulation.clearDeviceMetricsOverride")
        b.open(self.url)
        row = "| " + " | ".join(["Implementation", "Characteristics", "`configuration_name`", "Disadvantages", "Recommendations"]) + " |\n"
        b.script("const c = element('div', 'message assistant'); const t = element('div', 'text'); c.append(t);"
                 "document.getElementById('log').replaceChildren(c); showMarkdown(t, arguments[0])", row + "|---|---|---|---|---|\n" + row * 3)
        split = b.script("""
            const range = document.createRange();
            return [...document.querySelectorAll('#log th, #log td')].filter(cell => {
              range.selectNodeContents(cell);
              return new Set([...range.getClientRects()].map(r => Math.round(r.bottom / 8))).size > 1;
            }).map(cell => cell.textContent)""")
        self.assertEqual((split, len(self.texts("#log td"))), ([], 15))
        self.assertTrue(b.script("return document.documentElement.scrollWidth <= 390"))

    # ---- Errors

    def test_a_server_that_is_gone_is_said_in_words(self):
        b = self.browser
        server = Server()
        b.open("http://127.0.0.1:%d/" % server.port)
        b.wait("document.getElementById('model').textContent == 'nano'")
        server.stop()
        b.type("#input", "What is 5 + 9?" + ENTER)
        b.wait("document.querySelector('.error')")
        self.assertIn("The server cannot be reached. Check that dsv4 serve is running", self.text(".error"))
        b.script(FAKE_SERVER)
        self.press("Try again", ".failure")
        b.wait("window.talks.length == 1")
        self.say("14")
        self.finish()
        self.assertEqual((self.texts(".error"), self.text(".message.assistant > .text")), ([], "14"))

    def test_a_connection_that_breaks_is_said_in_words(self):
        b = self.browser
        self.begin()
        self.say("Half a")
        b.script("window.fail()")
        b.wait("document.querySelector('.error')")
        self.assertIn("The connection to the server broke before the reply was complete", self.text(".error"))
        self.assertEqual(self.text(".message.assistant > .text"), "Half a")
        self.press("Try again", ".failure")
        b.wait("window.talks.length == 2")
        self.say("A whole")
        self.finish()
        b.wait(IDLE % 1)
        self.assertEqual(self.text(".message.assistant > .text"), "A whole")


if __name__ == "__main__":
    main()
