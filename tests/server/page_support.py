"""Shared by the tests of the chat page: a server, a browser, and the page's actions."""

import json
import unittest

from browser import DRIVER, ENTER, Browser
from support import ServerTestCase

# Replaces the server's replies. window.talks has every request: {asked, more(event...), say(text, rest), end(), cut(),
# fail()}. window.more and the others belong to the latest one.
FAKE_SERVER = """
const real = window.fetch;
window.talks = [];
window.fetch = (url, options) => {
  if (!String(url).includes("chat/completions")) return real(url, options);
  const coder = new TextEncoder(), talk = {asked: JSON.parse(options.body), isStopped: false};
  const body = new ReadableStream({start(out) {
    talk.more = (...events) => events.forEach(e => out.enqueue(coder.encode("data: " + JSON.stringify(e) + "\\n\\n")));
    talk.say = (content, rest) => talk.more({choices: [{delta: {content}, ...rest}]});
    talk.end = () => { out.enqueue(coder.encode("data: [DONE]\\n\\n")); out.close(); };
    talk.cut = () => out.close();
    talk.fail = () => out.error(new TypeError("network error"));
    options.signal.addEventListener("abort", () => {
      talk.isStopped = true;
      out.error(new DOMException("stopped", "AbortError"));
    });
  }});
  window.talks.push(talk);
  Object.assign(window, talk);
  return Promise.resolve(new Response(body));
};"""
REPLIES = "document.querySelectorAll('.message.assistant').length"
IDLE = "!document.querySelector('#send').hidden && " + REPLIES + " == %d"


@unittest.skipUnless(DRIVER, "there is no chromedriver (Debian: scripts/setup browser)")
class PageTestCase(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = Browser()
        cls.url = "http://127.0.0.1:%d/" % cls.server.port

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        super().tearDownClass()

    def setUp(self):
        b = self.browser
        b.open(self.url)
        b.script("localStorage.clear(); indexedDB.deleteDatabase('dsv4').onsuccess = () => { window.gone = true; }")
        b.wait("window.gone")
        b.open(self.url)
        self.set("temperature", "0")

    def set(self, name, value):
        self.browser.script("const e = document.getElementById(arguments[0]); e.value = arguments[1];"
                            "e.dispatchEvent(new Event('change'))", name, value)

    def ask(self, text, replies=1):
        self.browser.type("#input", text + ENTER)
        self.browser.wait(IDLE % replies)

    def press(self, text, where=""):
        """Clicks the last button with this text."""
        self.browser.wait("[...document.querySelectorAll(%s)].some(x => x.textContent == %s)" % (
            json.dumps(where + " button"), json.dumps(text)))
        self.browser.script("[...document.querySelectorAll(arguments[0])].filter(x => x.textContent == arguments[1]).pop().click()",
                            where + " button", text)

    def text(self, selector):
        return self.browser.script("return document.querySelector(arguments[0]).textContent", selector).strip()

    def texts(self, selector):
        return self.browser.script("return [...document.querySelectorAll(arguments[0])].map(x => x.textContent.trim())", selector)

    def show(self, markdown):
        """A reply of these words, as the page shows it: as markup."""
        self.browser.script("document.getElementById('log').replaceChildren(element('div', 'shown'));"
                            "showMarkdown(document.querySelector('.shown'), arguments[0])", markdown)
        self.assertEqual(self.texts(".shown > .plain"), [])

    # ---- Replies of the fake server

    def begin(self, text="Hi"):
        """Sends a message to the fake server, and returns the number of its request."""
        b = self.browser
        if not b.script("return !!window.talks"):
            b.script(FAKE_SERVER)
        number = b.script("return window.talks.length")
        b.type("#input", text + ENTER)
        b.wait("window.talks.length == %d" % (number + 1))
        return number

    def say(self, text, number=None):
        """Sends a part of a reply, and waits until the page has drawn it."""
        talk = "window.talks[%s]" % ("window.talks.length - 1" if number is None else number)
        self.browser.script("for (const reply of replies.values()) reply.next = 0; %s.say(arguments[0])" % talk, text)

    def finish(self, number=None, replies=1):
        talk = "window.talks[%s]" % ("window.talks.length - 1" if number is None else number)
        self.browser.script("%s.say('', {finish_reason: 'stop'}); %s.end()" % (talk, talk))
        self.browser.wait(IDLE % replies)
