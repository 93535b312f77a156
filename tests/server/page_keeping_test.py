#!/usr/bin/env python3
"""Tests the conversations of the chat page: several replies at once, names, files, export and import. Skipped if there is
no browser.

    page_keeping_test.py BINARY
"""

import json
import tempfile
import time
from pathlib import Path

from browser import ENTER, ESCAPE
from page_support import FAKE_SERVER, IDLE, PageTestCase
from support import SUM, main

SHOWN = "[...document.querySelectorAll('.message > .text')].map(e => e.textContent.trim()).join('|')"
TITLES = "[...document.querySelectorAll('#list .title')].map(e => e.textContent).join('|')"
# Imports that are refused, each with words of the reason.
BAD_IMPORTS = [
    ("{", "not JSON"), ("[]", "not an export"), ("{}", "not an export"), ('{"format": "other", "version": 1, "conversations": []}', "not an export"),
    ("[" * 100000, "not JSON"), ('{"messages": [{"role": "user", "content": 5}]}', "content is not a text"),
    ('{"messages": [{"role": "root", "content": ""}]}', "no known role"), ('{"messages": []}', "no messages"),
    ('{"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": 1}}]}]}', "name of a function"),
]
# Changes of a good conversation that are refused.
BAD_CONVERSATIONS = [
    ({"nodes": [{"parent": 0, "message": {"role": "user", "content": ""}}]}, "parent"),
    ({"nodes": [{"parent": -2, "message": {"role": "user", "content": ""}}]}, "parent"),
    ({"nodes": [{"parent": "x", "message": {"role": "user", "content": ""}}]}, "parent"),
    ({"nodes": [5]}, "node is not"), ({"nodes": []}, "no messages"), ({"nodes": {"length": 3}}, "not a list"), ({"nodes": None}, "not a list"),
    ({"leaf": 9}, "leaf"), ({"leaf": 0.5}, "leaf"), ({"leaf": None}, "leaf"), ({"title": {}}, "title is not a text"),
    ({"nodes": [{"parent": -1, "message": {"role": "user", "content": "x"}, "files": [{"name": "a", "text": "x" * 600000}]}]}, "524,288"),
    ({"nodes": [{"parent": -1, "message": {"role": "user", "content": "x"}, "files": [{"name": "a", "text": ""}] * 9}]}, "entries"),
    ({"nodes": [{"parent": i - 1, "message": {"role": "user", "content": ""}} for i in range(5001)]}, "5,000"),
]


class Keeping(PageTestCase):
    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        self.browser.script("showSide(true)")

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def kept(self):
        """Waits until everything is stored."""
        self.browser.script("window.kept = false; keeping.then(() => { window.kept = true; })")
        self.browser.wait("window.kept")

    def notice(self, words):
        self.browser.wait("document.getElementById('notice').textContent.includes(%s)" % json.dumps(words))

    def reload(self):
        self.browser.call("POST", "/refresh", {})

    # ---- Several replies

    def test_the_page_stays_usable_while_a_reply_streams(self):
        b = self.browser
        self.begin("first")
        self.say("One")
        b.wait(SHOWN + " == 'first|One'")
        b.click("#new")
        b.wait("document.querySelectorAll('.message').length == 0 && !document.getElementById('send').hidden")
        second = self.begin("second")
        self.say("Two", second)
        b.wait(SHOWN + " == 'second|Two'")
        self.say(" more", 0)  # a reply that is not shown continues
        b.wait("document.querySelectorAll('#list .running').length == 2")
        b.script("[...document.querySelectorAll('#list .title')].find(e => e.textContent == 'first').click()")
        b.wait(SHOWN + " == 'first|One more' && !document.getElementById('stop').hidden")
        self.say(" and more", 0)
        b.wait(SHOWN + " == 'first|One more and more'")
        b.script("[...document.querySelectorAll('#list .title')].find(e => e.textContent == 'second').click()")
        b.wait(SHOWN + " == 'second|Two'")
        b.script("window.talks[0].say('.', {finish_reason: 'stop'}); window.talks[0].end()")  # it ends while it is not shown
        b.wait("document.querySelectorAll('#list .running').length == 1 && document.getElementById('send').hidden")
        self.assertEqual(b.script("return " + SHOWN), "second|Two")
        b.click("#stop")
        b.wait(IDLE % 1)
        self.assertEqual(b.script("return window.talks.map(t => t.isStopped)"), [False, True])
        self.assertEqual(self.texts(".error"), ["Stopped."])
        self.kept()
        self.reload()
        for title, shown in [("first", "first|One more and more."), ("second", "second|Two")]:
            b.wait(TITLES + ".includes('%s')" % title)
            b.script("[...document.querySelectorAll('#list .title')].find(e => e.textContent == arguments[0]).click()", title)
            b.wait(SHOWN + " == '%s'" % shown)

    def test_replies_of_the_server_continue_in_the_background(self):
        b = self.browser
        b.click("#thinking")
        b.type("#input", "What is 27 + 48?" + ENTER)
        b.click("#new")
        b.type("#input", "What is 5 + 9?" + ENTER)
        b.wait(IDLE % 1 + " && !document.querySelector('#list .running')")
        self.assertEqual(self.texts(".message > .text"), ["What is 5 + 9?", "5 + 9 = 14."])
        b.script("[...document.querySelectorAll('#list .title')].find(e => e.textContent == 'What is 27 + 48?').click()")
        b.wait(SHOWN + " == 'What is 27 + 48?|27 + 48 = 75.'")

    def test_replies_at_once_have_a_limit(self):
        b = self.browser
        for i in range(4):
            self.begin("question %d" % i)
            b.click("#new")
        b.type("#input", "one too many" + ENTER)
        self.notice("4 replies are being written")
        self.assertEqual(b.script("return [window.talks.length, document.getElementById('input').value]"), [4, "one too many"])
        b.script("window.talks[1].end()")
        b.wait("document.querySelectorAll('#list .running').length == 3")
        b.type("#input", ENTER)
        b.wait("window.talks.length == 5")

    def test_a_conversation_deleted_while_its_reply_streams_is_gone(self):
        b = self.browser
        self.begin("first")
        self.say("One")
        b.wait("document.querySelector('#list .running')")
        b.script("window.confirm = () => true; document.querySelector('#list .delete').click()")
        b.wait("document.querySelectorAll('#list li, .message').length == 0")
        self.assertIs(b.script("return window.talks[0].isStopped"), True)
        self.kept()
        self.reload()
        b.wait("document.querySelector('.empty')")
        self.assertEqual(self.texts("#list li"), [])

    # ---- Names

    def rename(self, title, name):
        self.press("⋯", "#list")
        self.press("Rename", "#list .actions")
        self.assertEqual(self.browser.script("return document.activeElement.value"), title)
        self.browser.script("document.activeElement.value = ''")
        self.browser.type("#list form input", name)

    def test_a_conversation_is_renamed(self):
        b = self.browser
        b.click("#thinking")
        self.ask("What is 5 + 9?")
        b.wait(TITLES + " == 'What is 5 + 9?'")
        self.rename("What is 5 + 9?", "no" + ESCAPE)
        b.wait(TITLES + " == 'What is 5 + 9?'")
        self.press("Rename", "#list .actions")
        b.type("#list form input", "<b>Sums</b>" + ENTER)
        b.wait(TITLES + " == '<b>Sums</b>'")
        self.assertEqual(self.texts("#list b"), [])
        self.reload()
        b.wait(TITLES + " == '<b>Sums</b>' && " + SHOWN + " == 'What is 5 + 9?|5 + 9 = 14.'")
        self.ask("What is 27 + 48?", 2)  # it keeps its name, and stays one conversation
        self.kept()
        self.assertEqual(self.texts("#list .title"), ["<b>Sums</b>"])

    def test_renaming_while_a_reply_streams(self):
        b = self.browser
        self.begin("first")
        self.say("One")
        b.wait("document.querySelector('#list .running')")
        self.rename("first", "Name")
        b.script("keep(conversation)")  # as a reply does every two seconds: the field stays
        self.kept()
        b.type("#list form input", "d" + ENTER)
        b.wait(TITLES + " == 'Named'")
        self.say(" two")
        self.finish()
        self.kept()
        self.reload()
        b.wait(TITLES + " == 'Named' && " + SHOWN + " == 'first|One two'")

    # ---- Files

    def test_text_files_are_sent_with_their_names(self):
        b = self.browser
        b.type("#file", self.file("notes.txt", "a <b>\nπ") + "\n" + self.file("x.py", "print(1)"))
        b.wait("document.querySelectorAll('#attached .chip').length == 2")
        self.assertEqual(self.texts("#attached .name"), ["notes.txt", "x.py"])
        self.assertEqual(self.texts("#attached .size"), ["8 bytes", "8 bytes"])
        b.script("document.querySelector('#attached .chip button').click()")  # the first is removed
        self.assertEqual(self.texts("#attached .name"), ["x.py"])
        b.type("#file", self.file("notes.txt", "a <b>\nπ"))
        b.wait("document.querySelectorAll('#attached .chip').length == 2")
        self.begin("Explain")
        self.assertEqual(b.script("return window.asked.messages"), [{"role": "user", "content":
            "[file name]: x.py\n[file content begin]\nprint(1)\n[file content end]\n"
            "[file name]: notes.txt\n[file content begin]\na <b>\nπ\n[file content end]\nExplain"}])
        self.say("Yes")
        self.finish()
        self.assertEqual(self.texts("#attached .chip"), [])
        self.assertEqual((self.texts(".message.user .name"), self.text(".message.user > .text")), (["x.py", "notes.txt"], "Explain"))
        b.script("document.querySelectorAll('.message.user .chip')[1].open = true")
        b.wait("document.querySelectorAll('.message.user .chip pre')[1].textContent == 'a <b>\\nπ'")
        self.kept()
        self.reload()
        b.wait("document.querySelectorAll('.message.user .chip').length == 2")
        self.press("Edit", ".message.user")  # an edited message keeps its files
        b.script("document.querySelector('form.edit textarea').value = 'Again'")
        self.browser.script("delete window.talks")
        from_page = self.begin_edit()
        self.assertIn("[file name]: notes.txt", from_page)
        self.assertTrue(from_page.endswith("[file content end]\nAgain"))

    def begin_edit(self):
        b = self.browser
        b.script(FAKE_SERVER)
        b.type("form.edit textarea", ENTER)
        b.wait("window.talks.length == 1")
        return b.script("return window.asked.messages[0].content")

    def test_a_dropped_file_is_attached(self):
        b = self.browser
        b.script("""
            const data = new DataTransfer();
            data.items.add(new File(["dropped"], "a\\u202e\\nb.txt"));
            const event = name => document.getElementById("log").dispatchEvent(
              new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
            window.let = [event("dragover"), document.body.classList.contains("drop"), event("drop")];""")
        self.assertEqual(b.script("return window.let"), [False, True, False])  # the browser does not open the file
        b.wait("document.querySelectorAll('#attached .chip').length == 1 && !document.body.classList.contains('drop')")
        self.assertEqual(self.texts("#attached .name"), ["a  b.txt"])
        b.click("#send")  # a file needs no words
        b.wait("document.querySelector('.message.user .name')")
        b.wait(IDLE % 1)

    def test_files_that_are_not_text_or_too_large_are_refused(self):
        b = self.browser
        for name, content, words in [
                ("a.png", b"\x89PNG\r\n\x1a\n\0\0", "a.png is not a text file"), ("b.txt", "π".encode("utf-16"), "b.txt is not a text file"),
                ("c.txt", b"\xff\xfeabc", "c.txt is not a text file"), ("d.txt", "x" * (512 * 1024 + 1), "d.txt has 525 kB: a file may have at most 525 kB"),
                ("e.txt", "", "e.txt is empty"), ("f.txt", b"a\x1b[1m\x1f", "f.txt is not a text file")]:
            b.type("#file", self.file(name, content))
            self.notice(words)
            self.assertEqual(self.texts("#attached .chip"), [])
        b.type("#file", "\n".join(self.file("%d.txt" % i, "x") for i in range(9)))
        self.notice("at most 8 files")
        self.assertEqual(len(self.texts("#attached .chip")), 8)
        b.type("#file", self.file("largest.txt", "x" * 512 * 1024))
        self.notice("at most 8 files")

    # ---- Export and import

    def exported(self, press):
        b = self.browser
        b.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.folder))
        press()

        end = time.time() + 120
        while time.time() < end:
            found = [p for p in self.folder.glob("*.json")]
            if found:
                return found[0].name, json.loads(found[0].read_text())
            time.sleep(0.1)
        self.fail("nothing was exported")

    def test_what_was_exported_can_be_imported(self):
        b = self.browser
        b.click("#thinking")
        self.ask("What is 5 + 9?")
        self.press("Edit", ".message.user")
        b.script("document.querySelector('form.edit textarea').value = 'What is 27 + 48?'")
        b.type("form.edit textarea", ENTER)
        b.wait(IDLE % 1 + " && document.querySelector('.branches').textContent.includes('2 of 2')")
        b.click("#new")
        self.ask("Hello")
        self.kept()
        name, content = self.exported(lambda: b.click("#exportall"))
        self.assertEqual(name, "dsv4-conversations.json")
        self.assertEqual([c["title"] for c in content["conversations"]], ["Hello", "What is 5 + 9?"])
        (self.folder / name).rename(self.folder / "all.txt")
        b.script("document.querySelectorAll('#list .export')[1].click()")
        name, one = self.exported(lambda: None)
        self.assertEqual((name, one["conversations"]), ("dsv4-what-is-5-9.json", content["conversations"][1:]))
        self.setUp()  # another browser
        b.type("#importfile", self.file("all.json", json.dumps(content)))
        self.notice("2 conversations imported")
        b.wait(TITLES + " == 'Hello|What is 5 + 9?'")
        b.type("#importfile", self.file("one.json", json.dumps(one)))  # as a copy, which is shown
        b.wait(SHOWN + " == 'What is 27 + 48?|27 + 48 = 75.'")
        self.assertIn("2 of 2", self.text(".message.user .branches"))
        self.assertEqual(len(self.texts("#list .title")), 3)
        self.press("‹")
        self.assertEqual(b.script("return " + SHOWN), "What is 5 + 9?|5 + 9 = 14.")
        self.ask("What is 1 + 1?", 2)  # it continues

    def test_a_conversation_of_the_terminal_can_be_imported(self):
        b = self.browser
        saved = {"messages": [{"role": "system", "content": "Be brief."}, *SUM, {"role": "assistant", "content": "75", "reasoning_content": "7 + 8"}]}
        b.type("#importfile", self.file("chat.json", json.dumps(saved)))
        b.wait(SHOWN + " == 'Be brief.|What is 27 + 48?|75'")
        self.assertEqual(self.text(".message.assistant details .plain"), "7 + 8")
        self.begin("And?")
        self.assertEqual(b.script("return window.asked.messages"), [*saved["messages"], {"role": "user", "content": "And?"}])

    def test_bad_imports_are_refused_and_change_nothing(self):
        b = self.browser
        good = {"title": "t", "updated": 1, "leaf": 0, "nodes": [{"parent": -1, "message": {"role": "user", "content": "x"}}]}
        wrap = lambda c, version=1: json.dumps({"format": "dsv4-conversations", "version": version, "conversations": c})
        cases = BAD_IMPORTS + [(wrap([{**good, **change}]), words) for change, words in BAD_CONVERSATIONS]
        cases += [(wrap([good], 2), "version"), (wrap([good] * 1001), "1,000"), (wrap([good, 5]), "conversation is not"), (b"\0\1", "not a text file")]
        for content, words in cases:
            b.script("notify('')")
            b.type("#importfile", self.file("bad.json", content))
            self.notice("bad.json was not imported: ")
            self.assertIn(words, self.text("#notice"))
        refused = b.script("""
            window.huge = new File(["x"], "huge.json");
            Object.defineProperty(window.huge, "size", {value: 65 * 1024 * 1024});
            return importFile(window.huge).then(() => document.getElementById("notice").textContent)""")
        self.assertIn("huge.json has 68.2 MB", refused)
        self.assertEqual(self.texts("#list li"), [])

    def test_an_import_runs_nothing(self):
        b = self.browser
        evil = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
        nodes = [{"parent": -1, "message": {"role": "user", "content": evil, "onclick": evil}, "files": [{"name": evil, "text": evil}]},
                 {"parent": 0, "message": {"role": "assistant", "content": evil + "\n\n[a](javascript:window.hacked=1)", "reasoning_content": evil,
                  "tool_calls": [{"id": evil, "function": {"name": evil, "arguments": evil}}]}, "stats": evil, "error": evil, "tokens": evil}]
        text = json.dumps({"format": "dsv4-conversations", "version": 1, "conversations": [
            {"id": "own", "version": 7, "title": evil, "updated": 1e308, "leaf": 1, "nodes": nodes, "deleted": True}]})
        b.type("#importfile", self.file("evil.json", text.replace('"id": "own"', '"id": "own", "__proto__": {"hacked": 1}')))
        b.wait("document.querySelectorAll('.message').length >= 2")
        self.assertEqual(b.script("return [window.hacked, ({}).hacked, document.querySelectorAll('img, #log script, #list script, #log a[href]').length]"),
                         [None, None, 0])
        self.assertNotEqual(b.script("return conversation.id"), "own")
        self.assertEqual(b.script("return [conversation.version, conversation.deleted, conversation.nodes[1].tokens, 'onclick' in "
                                  "conversation.nodes[0].message, conversation.updated <= Date.now()]"), [1, None, None, False, True])
        self.assertEqual(self.texts("#list .title"), [evil])

    # ---- The context

    def test_the_gauge_shows_the_context_and_warns(self):
        b = self.browser
        context = self.server.get("/v1/models").json["data"][0]["max_model_len"]
        b.wait("contextSize == %d" % context)
        self.assertTrue(b.script("return document.getElementById('gauge').hidden"))
        b.click("#thinking")
        self.ask("What is 5 + 9?")
        used = b.script("return conversation.nodes[1].tokens")
        self.assertGreater(used, 10)
        self.assertEqual(self.text("#gauge"), "Context: {:,} of {:,} tokens".format(used, context))
        self.assertIn("%d prompt tokens" % (used - int(self.text(".stats").split()[0])), self.text(".stats"))
        self.begin("More")
        b.script("window.more({choices: [], prompt_progress: {total: arguments[0], cache: 0, processed: 0, time_ms: 1}})", context - 100)
        self.say("a")
        b.wait("document.getElementById('gauge').classList.contains('warn')")
        self.assertIn("nearly full", self.text("#gauge"))
        b.script("window.more({choices: [], usage: {prompt_tokens: %d, completion_tokens: 10}})" % (context - 100))
        self.finish(replies=2)
        self.assertIn("{:,} of".format(context - 90), self.text("#gauge"))
        self.kept()
        b.click("#new")
        self.assertTrue(b.script("return document.getElementById('gauge').hidden"))
        b.script("document.querySelector('#list .title').click()")
        b.wait("document.getElementById('gauge').classList.contains('warn')")


if __name__ == "__main__":
    main()
