#!/usr/bin/env python3
"""Tests the chat page in a browser. Skipped if there is no browser. A second argument names a file for a screenshot:

    page_test.py BINARY [SCREENSHOT.png]
"""

import json
import sys

SCREENSHOT = sys.argv.pop(2) if len(sys.argv) == 3 else ""

from browser import ENTER, ESCAPE
from page_support import FAKE_SERVER, IDLE, REPLIES, PageTestCase
from support import SLOWNESS, WEATHER_TOOL, main

# If one of these became markup, it would fetch something or set window.hacked.
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "![x](http://evil.example/pixel.png)",
    "![x](x\" onerror=\"window.hacked=1)",
    "<svg onload=window.hacked=1><animate onbegin=window.hacked=1 attributeName=x dur=1s></svg>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.hacked=1&gt;'>",
    "<form action='http://evil.example'><input name=x autofocus onfocus=window.hacked=1></form>",
    "<style>body { display: none }</style><link rel=stylesheet href=http://evil.example/x.css>",
    "<details open ontoggle=window.hacked=1>x</details>",
    "<a href='javascript:window.hacked=1'>a</a>",
    "[b](javascript:window.hacked=1)",
    "[c](java&#x0a;script:window.hacked=1)",
    "[d](  JaVaScRiPt:window.hacked=1)",
    "[e](data:text/html,<script>window.hacked=1</script>)",
    "[f](v1/models)",
    "[g][r]\n\n[r]: javascript:window.hacked=1",
    "<javascript:window.hacked=1>",
    "[h](https://fine.example \"t' onmouseover='window.hacked=1\")",
    "```\"><img src=x onerror=window.hacked=1>\ncode\n```",
    "```js\n</code></pre><script>window.hacked = 1</script>\n```",
    "`<script>window.hacked = 1</script>`",
    "| a | b |\n|---|---|\n| <img src=x onerror=window.hacked=1> | x |",
    "<p id=input name=input class='message user'>clobbers</p>",
    "<base href=http://evil.example/><meta http-equiv=refresh content='0;url=http://evil.example'>",
]
# Returns all faults of the elements below a selector.
FAULTS = """
const allowed = new Set("A BLOCKQUOTE BR BUTTON CODE DEL DIV EM H1 H2 H3 H4 H5 H6 HR LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL"
  .split(" "));
const attributes = new Set(["href", "title", "align", "start", "target", "rel", "class", "type"]);
const faults = [];
for (const e of document.querySelectorAll(arguments[0] + " *")) {
  if (!allowed.has(e.tagName)) faults.push(e.outerHTML);
  for (const a of e.attributes) if (!attributes.has(a.name)) faults.push(a.name + " in " + e.outerHTML);
  const colours = ["keyword", "string", "comment", "number", "function", "type", "inserted", "deleted"];
  if (e.className && !["code", "head", "table", "quiet", "plain", ...colours].includes(e.className)) faults.push(e.outerHTML);
  if (e.hasAttribute("href") && !/^(https?|mailto):/.test(e.href)) faults.push(e.outerHTML);
}
return faults;"""


class Page(PageTestCase):
    # ---- Talking

    def test_a_conversation(self):
        b = self.browser
        b.wait("document.getElementById('model').textContent == 'nano'")
        self.ask("What is 27 + 48?")
        self.assertEqual(self.text(".message.assistant > .text"), "27 + 48 = 75.")
        self.assertIn("write 5", self.text(".message.assistant details .plain"))
        self.assertFalse(b.script("return document.querySelector('.message.assistant details').open"))  # folded
        self.assertIn("per second", self.text(".stats"))
        b.click("#thinking")
        self.ask("What is 5 + 9?", 2)
        self.assertTrue(b.script("return [...document.querySelectorAll('details')].pop().hidden"))
        b.click("#theme")
        self.assertIn(b.script("return document.documentElement.dataset.theme"), ["dark", "light"])
        if SCREENSHOT:
            b.script("document.documentElement.dataset.theme = 'light'; document.querySelector('details').open = true;"
                     "showSide(true); document.activeElement.blur()")
            b.screenshot(SCREENSHOT)
        b.click("#new")
        self.assertEqual(self.texts(".message"), [])
        self.assertEqual(b.errors(), [])

    def test_an_empty_conversation_offers_examples(self):
        b = self.browser
        b.wait("document.querySelector('.empty h2') && document.querySelector('.empty h2').textContent == 'Chat with nano'")
        examples = self.texts(".empty button")
        self.assertEqual((len(examples), len(set(examples))), (3, 3))
        b.script(FAKE_SERVER)
        self.press(examples[1], ".empty")
        b.wait("!!window.say")
        self.assertEqual(b.script("return window.asked.messages"), [{"role": "user", "content": examples[1]}])
        self.assertEqual(self.texts(".empty"), [])
        b.script("window.say('Yes'); window.say('', {finish_reason: 'stop'}); window.end()")
        b.wait(IDLE % 1)
        self.assertEqual(self.texts(".message > .text"), [examples[1], "Yes"])
        self.assertEqual(b.script("return document.getElementById('input').value"), "")
        b.click("#new")
        self.assertEqual(self.texts(".empty button"), examples)
        self.assertEqual(self.text(".empty h2"), "Chat with nano")

    def test_stop_and_retry(self):
        b = self.browser
        self.set("temperature", "1")
        b.click("#thinking")
        b.script("const f = window.fetch; window.fetch = (u, o) => { if (o && o.body) { const x = JSON.parse(o.body); x.ignore_eos = "
                 "true; o = {...o, body: JSON.stringify(x)}; } return f(u, o); }")
        b.type("#input", "Tell me a story." + ENTER)
        b.wait("document.querySelector('.stats') && document.querySelector('.stats').textContent.includes('per second')")
        b.type("#input", ESCAPE)
        b.wait("document.querySelector('.error') && document.querySelector('.error').textContent == 'Stopped.'")
        self.server.wait_until_idle()  # the server has stopped, too
        self.set("max_tokens", "5")
        self.press("Try again", ".failure")
        b.wait(IDLE % 1)
        self.assertIn("reached Max tokens", self.text(".error"))
        self.assertEqual(len(self.texts(".message.user")), 1)
        self.assertIn("2 of 2", self.text(".message.assistant .branches"))  # the stopped reply is the other branch

    def test_tools_are_shown_and_answered(self):
        b = self.browser
        self.set("tools", json.dumps([WEATHER_TOOL]))
        b.click("#thinking")
        self.ask("What is the weather in Paris?")
        self.assertIn("get_weather({\"city\": \"Paris\"", self.text(".call"))
        b.type("form.message.tool input", '{"city": "Paris", "temperature": 18, "unit": "celsius", "sky": "clear"}' + ENTER)
        b.wait(IDLE % 2)
        self.assertIn("18", self.texts(".message.assistant > .text")[-1])

    def test_every_error_can_be_retried(self):
        b = self.browser
        b.click("#thinking")
        self.set("tools", "{")
        self.ask("What is 5 + 9?")
        self.assertIn("not valid JSON", self.text(".error"))
        self.set("tools", "")
        self.set("top_p", "7")
        self.press("Try again", ".failure")
        b.wait("document.querySelector('.error') && document.querySelector('.error').textContent.includes('top_p')")
        self.set("top_p", "")
        b.script("window.real = window.fetch; window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
        self.press("Try again", ".failure")
        b.wait("document.querySelector('.error') && document.querySelector('.error').textContent.includes('The server cannot be reached')")
        self.assertNotIn("fetch", self.text(".error"))
        b.script("window.fetch = () => Promise.resolve(new Response('<h1>Bad gateway</h1>', {status: 502}))")
        self.press("Try again", ".failure")
        b.wait("document.querySelector('.error') && document.querySelector('.error').textContent.includes('502: <h1>Bad')")
        b.script("window.fetch = window.real")
        self.press("Try again", ".failure")
        b.wait("document.querySelector('.message.assistant > .text').textContent.includes('14')")
        b.wait(IDLE % 1)
        self.assertEqual(self.texts(".error"), [])
        self.assertEqual(self.texts(".branches"), ["", ""])  # an empty failed reply leaves no branch

    def test_an_error_in_the_middle_keeps_what_came(self):
        b = self.browser
        for end, words in [("window.more({error: {message: 'the device failed'}})", "the device failed"),
                           ("window.cut()", "ended before the reply was complete")]:
            b.script(FAKE_SERVER)
            b.type("#input", "Hi" + ENTER)
            b.wait("!!window.say")
            b.script("window.say('Half a'); " + end)
            b.wait("document.querySelector('.error') && document.querySelector('.error').textContent.includes('%s')" % words)
            self.assertEqual(self.text(".message.assistant > .text"), "Half a")
            b.open(self.url)
        b.wait("document.querySelectorAll('#list .title').length == 2")  # the page reads them after it has loaded
        self.assertEqual(self.texts("#list .title"), ["Hi", "Hi"])

    def test_progress_and_timings_of_the_server(self):
        b = self.browser
        b.script(FAKE_SERVER)
        b.type("#input", "Hi" + ENTER)
        b.wait("!!window.more")
        self.assertIs(b.script("return window.asked.return_progress"), True)
        b.script("window.more({choices: [], prompt_progress: {total: 26000, cache: 1000, processed: 13000, time_ms: 9}})")
        b.wait("document.querySelector('progress')")
        self.assertEqual(b.script("const p = document.querySelector('progress'); return [p.value, p.max]"), [13000, 26000])
        self.assertIn("13,000 of 26,000 tokens, 1,000 cached tokens", self.text("#log"))
        b.script("window.say('Hello'); window.say('', {finish_reason: 'stop'}); window.more({choices: [], usage: {prompt_tokens: 26000,"
                 "completion_tokens: 8, prompt_tokens_details: {cached_tokens: 1000}, completion_tokens_details: "
                 "{accepted_prediction_tokens: 5}}, timings: {prompt_n: 25000, prompt_ms: 38000, predicted_n: 8, predicted_ms: 100,"
                 "predicted_per_second: 80, queue_ms: 1500, draft_n: 6, draft_n_accepted: 5}}); window.end()")
        b.wait(IDLE % 1)
        self.assertEqual(self.text(".stats"), "8 tokens, 80.0 per second, waited 1.5 s, prompt read in 38.0 s, 26000 prompt tokens, "
                                              "1000 cached tokens, 5 of 6 draft tokens accepted")
        self.assertEqual(self.texts("progress"), [])

    def test_keys_of_a_mac_and_of_others(self):
        b = self.browser
        press = "document.dispatchEvent(new KeyboardEvent('keydown', {altKey: true, key: '%s', code: '%s'}))"
        is_open = "return document.getElementById('settings').open"
        self.assertIn("Alt+S", self.text("#hint"))
        b.script(press % ("ß", "KeyS"))
        self.assertFalse(b.script(is_open))
        b.script(press % ("s", "KeyS"))
        self.assertTrue(b.script(is_open))
        agent = b.script("return navigator.userAgent")
        b.devtools("Emulation.setUserAgentOverride", userAgent=agent, platform="MacIntel")
        self.addCleanup(b.devtools, "Emulation.setUserAgentOverride", userAgent=agent, platform="Linux x86_64")
        b.open(self.url)
        self.assertIn("⌥S", self.text("#hint"))
        b.script(press % ("ß", "KeyS"))  # Option+S on a Mac
        self.assertTrue(b.script(is_open))

    def test_a_phone(self):
        b = self.browser
        b.devtools("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=3, mobile=True)
        b.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
        self.addCleanup(b.devtools, "Emulation.clearDeviceMetricsOverride")
        self.addCleanup(b.devtools, "Emulation.setTouchEmulationEnabled", enabled=False)
        b.open(self.url)
        fits = "return document.documentElement.scrollWidth <= 390 && innerWidth == 390"
        self.show("```\n" + "wide " * 100 + "\n```\n\n" + "x" * 500 + "\n\n|" + "cell|" * 40 + "\n|" + "-|" * 40 + "\n|" + "cell|" * 40)
        self.assertTrue(b.script(fits))
        b.script("document.getElementById('log').replaceChildren()")
        b.click("#toggle")
        box = b.script("const r = document.getElementById('settings').getBoundingClientRect(); return [r.left, r.top, r.width, r.height]")
        self.assertEqual(box, [0, 0, 390, 844])
        # Every setting can be reached, and its text is large enough that the phone does not zoom in.
        small = ("return [...document.querySelectorAll('#settings input, #settings select, #settings textarea')].filter(e => {"
                 "e.scrollIntoView(); const r = e.getBoundingClientRect();"
                 "return r.left < 0 || r.right > 390 || r.bottom > 844 || parseFloat(getComputedStyle(e).fontSize) < 16;"
                 "}).map(e => e.id)")
        self.assertEqual(b.script(small), [])
        b.click("#done")
        self.assertTrue(b.script(fits))
        b.click("#thinking")
        b.type("#input", "two" + ENTER + "lines")  # Enter begins a line on touch screens
        self.assertEqual(b.script("return document.getElementById('input').value"), "two\nlines")
        b.click("#send")
        b.wait(IDLE % 1)
        b.click("#menu")
        self.assertEqual(b.script("return document.getElementById('side').getBoundingClientRect().width"), 390)
        b.click("#hide")
        self.assertTrue(b.script(fits))

    # ---- Keeping

    def reload(self):
        self.browser.call("POST", "/refresh", {})

    def test_a_conversation_survives_a_reload(self):
        b = self.browser
        b.click("#thinking")
        self.ask("What is 27 + 48?")
        self.ask("What is 5 + 9?", 2)
        b.wait("location.hash && document.querySelectorAll('#list li').length == 1")
        before = self.texts(".message > .text"), self.texts(".stats")
        self.reload()
        b.wait(REPLIES + " == 2")
        self.assertEqual((self.texts(".message > .text"), self.texts(".stats")), before)
        self.assertEqual(before[0][1::2], ["27 + 48 = 75.", "5 + 9 = 14."])
        self.ask("What is 1 + 1?", 3)  # the conversation continues
        b.click("#new")
        self.ask("Another")
        b.wait("document.querySelectorAll('#list li').length == 2")
        self.assertEqual(self.texts("#list .title"), ["Another", "What is 27 + 48?"])
        b.script("document.querySelectorAll('#list .title')[1].click()")
        b.wait(REPLIES + " == 3")
        b.script("window.confirm = () => true; document.querySelectorAll('#list .delete')[1].click()")
        b.wait("document.querySelectorAll('#list li').length == 1 && " + REPLIES + " == 0")
        self.reload()
        b.wait("document.querySelectorAll('#list li').length == 1")
        self.assertEqual(self.texts("#list .title"), ["Another"])

    def test_a_page_left_during_a_reply(self):
        b = self.browser
        b.click("#thinking")
        b.script(FAKE_SERVER)
        b.type("#input", "Hi" + ENTER)
        b.wait("!!window.say")
        b.script("window.say('Half'); keep()")
        b.wait("location.hash && document.querySelectorAll('#list li').length == 1")
        b.script("window.kept = false; keep().then(() => { window.kept = true; })")
        b.wait("window.kept")
        self.reload()
        b.wait("document.querySelector('.error')")
        self.assertEqual(self.text(".message.assistant > .text"), "Half")
        self.assertIn("left before", self.text(".error"))
        self.press("Try again", ".failure")
        b.wait(IDLE % 1 + " && !document.querySelector('.error')")

    def test_an_edit_is_a_branch_or_is_cancelled(self):
        b = self.browser
        b.click("#thinking")
        self.ask("What is 27 + 48?")
        self.press("Edit", ".message.user")
        b.type("form.edit textarea", " or not")
        self.press("Cancel")
        self.assertEqual(self.texts(".message.user > .text"), ["What is 27 + 48?"])
        self.press("Edit", ".message.user")
        b.type("form.edit textarea", "x" + ESCAPE)
        self.assertEqual(self.texts(".message > .text"), ["What is 27 + 48?", "27 + 48 = 75."])
        self.press("Edit", ".message.user")
        b.script("document.querySelector('form.edit textarea').value = ''")
        b.type("form.edit textarea", "What is 5 + 9?" + ENTER)
        b.wait(IDLE % 1 + " && document.querySelector('.branches').textContent.includes('2 of 2')")
        self.assertEqual(self.texts(".message > .text"), ["What is 5 + 9?", "5 + 9 = 14."])
        self.press("‹")
        self.assertEqual(self.texts(".message > .text"), ["What is 27 + 48?", "27 + 48 = 75."])
        b.script("window.kept = false; keep().then(() => { window.kept = true; })")
        b.wait("window.kept")
        self.reload()
        b.wait("document.querySelector('.branches')")
        self.assertIn("1 of 2", self.text(".message.user .branches"))
        self.press("›")
        self.assertEqual(self.texts(".message > .text"), ["What is 5 + 9?", "5 + 9 = 14."])

    def test_two_tabs_do_not_overwrite_each_other(self):
        b = self.browser
        b.click("#thinking")
        self.ask("What is 27 + 48?")
        b.wait("location.hash")
        first = b.script("return location.hash")
        b.script("loadConversation(conversation.id).then(c => { c.title = 'elsewhere'; return saveConversation(c); })"
                 ".then(() => { window.other = true; })")  # as another tab does
        b.wait("window.other")
        self.ask("What is 5 + 9?", 2)
        b.wait("document.querySelectorAll('#list li').length == 2")
        self.assertNotEqual(b.script("return location.hash"), first)
        self.assertEqual(set(self.texts("#list .title")), {"elsewhere", "What is 27 + 48?"})

    # ---- Markdown

    def test_what_markdown_says(self):
        self.show("# Title\n\nSome **bold** and `code`, 1 < 2 & 3\nnext line\n\n- [x] done\n- two\n\n| a | b |\n|---|:-:|\n| 1 | 2 |\n\n"
                  "```python\nprint('<b>')\n```\n\n[web](https://example.org/a?b=1&c=2)")
        b = self.browser
        for selector, text in [("h1", "Title"), ("strong", "bold"), ("p > code", "code"), ("li", "☑ done"), ("td", "1"),
                               (".code pre", "print('<b>')"), (".code .head span", "python"), ("a", "web")]:
            self.assertEqual(self.text(".shown " + selector), text)
        self.assertEqual(b.script("return getComputedStyle(document.querySelectorAll('.shown td')[1]).textAlign"), "-webkit-center")  # of `align`
        self.assertEqual(b.script("const a = document.querySelector('.shown a'); return [a.href, a.target, a.rel]"),
                         ["https://example.org/a?b=1&c=2", "_blank", "noopener noreferrer nofollow"])
        b.script("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
        self.press("Copy", ".shown")
        b.wait("!!window.copied")
        self.assertEqual(b.script("return window.copied"), "print('<b>')")
        self.assertEqual(self.text(".shown .head button"), "Copied")

    def test_copying_without_a_clipboard(self):
        b = self.browser  # as on a page from another machine over plain http
        b.script("navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed'));"
                 "document.execCommand = name => { window.copied = name + ' ' + document.activeElement.value; }")
        self.show("```\ntext\n```")
        self.press("Copy", ".shown")
        b.wait("!!window.copied")
        self.assertEqual(b.script("return window.copied"), "copy text")

    def test_hostile_markdown_does_nothing(self):
        b = self.browser
        for text in [*HOSTILE, "\n\n".join(HOSTILE)]:
            self.show(text)
            self.assertEqual(b.script(FAULTS, ".shown"), [], text)
        # The same texts as a reply and as a message, through the whole page.
        b.script(FAKE_SERVER)
        b.type("#input", HOSTILE[1] + ENTER)
        b.wait("!!window.say")
        for part in HOSTILE:
            b.script("window.say(arguments[0] + '\\n\\n')", part)
        b.script("window.say('', {finish_reason: 'stop'}); window.end()")
        b.wait(IDLE % 1)
        self.assertEqual(b.script(FAULTS, ".message.assistant > .text"), [])
        self.assertEqual(self.text(".message.user > .text"), HOSTILE[1])
        b.wait("document.querySelectorAll('#list .title').length == 1")
        self.assertEqual(self.texts("#list .title"), [HOSTILE[1]])
        self.assertEqual(b.script("return [window.hacked, document.querySelectorAll('img, iframe, svg, object').length]"), [None, 0])
        fetched = b.script("return performance.getEntriesByType('resource').map(e => e.name)")
        self.assertEqual([x for x in fetched if not x.startswith(self.url)], [])

    def test_html_is_text(self):
        self.show("before <b onclick=x>bold</b> <img src=x>\n\n<div>\nblock\n</div>")
        self.assertIn("before <b onclick=x>bold</b> <img src=x>", self.text(".shown"))
        self.assertIn("<div>", self.text(".shown"))

    def test_the_sanitiser_alone_stops_markup(self):
        b = self.browser  # as if marked passed all HTML
        b.script("markdownToHtml = text => text")
        for text in HOSTILE:
            self.show(text)
            b.script("document.querySelectorAll('.shown [class]').forEach(e => e.removeAttribute('class'))")
            self.assertEqual(b.script(FAULTS, ".shown"), [], text)
        self.assertIsNone(b.script("return window.hacked"))

    def test_the_policy_alone_stops_scripts(self):
        b = self.browser
        policy = self.server.get("/").headers["content-security-policy"]
        self.assertNotIn("unsafe", policy)
        self.assertIn("default-src 'none'", policy)
        with self.assertRaises(Exception):  # Trusted Types: text never becomes markup
            b.script("document.body.innerHTML = '<b>x</b>'")
        b.script("const e = document.createElement('a'); e.setAttribute('href', 'javascript:window.hacked=1'); document.body.append(e);"
                 "e.click(); const i = new Image(); i.src = 'http://evil.example/x.png';"
                 "i.onerror = () => { window.refused = true; }")
        b.wait("window.refused")
        self.assertIsNone(b.script("return window.hacked"))

    def test_long_and_deep_texts_end(self):
        b = self.browser
        for text in ["> " * 20000, "**a **" * 10000, ("**a **" * 600 + "\n\n") * 10, "[" * 20000, "a\n\n" * 30000, "<" * 50000,
                     "x" * 300000]:
            took = b.script("const begin = performance.now(); document.getElementById('log').replaceChildren(element('div', 'shown'));"
                            "showMarkdown(document.querySelector('.shown'), arguments[0]); return performance.now() - begin", text)
            self.assertLess(took, 20000 * SLOWNESS, text[:20])
        self.assertEqual(self.text(".shown > .plain"), "x" * 300000)

    def test_without_the_libraries_it_is_text(self):
        self.browser.script("delete window.marked")
        with self.assertRaises(AssertionError):
            self.show("**bold** <b>")
        self.assertEqual(self.text(".shown > .plain"), "**bold** <b>")


if __name__ == "__main__":
    main()
