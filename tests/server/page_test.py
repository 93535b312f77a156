#!/usr/bin/env python3
"""The chat page in a real browser: headless Chromium through chromedriver's HTTP interface (Debian: chromium-driver).
Skipped where there is none. With a second argument, a screenshot is written to that file:

    page_test.py BINARY [SCREENSHOT.png]
"""

import base64
import json
import shutil
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

SCREENSHOT = sys.argv.pop(2) if len(sys.argv) == 3 else ""

from support import WEATHER_TOOL, ServerTestCase, main

DRIVER = shutil.which("chromedriver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, ESCAPE = "\ue007", "\ue00c"


class Browser:
    def __init__(self):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.process = subprocess.Popen([DRIVER, "--port=%d" % port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = "http://127.0.0.1:%d" % port
        for _ in range(200):
            try:
                self.call("GET", "/status")
                break
            except OSError:
                time.sleep(0.05)
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,800",
                            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        session = self.call("POST", "/session", {"capabilities": capabilities})
        self.base += "/session/" + session["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)["value"]

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def script(self, code):
        return self.call("POST", "/execute/sync", {"script": code, "args": []})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", "/element/%s/click" % self.find(selector), {})

    def type(self, selector, text):
        self.call("POST", "/element/%s/value" % self.find(selector), {"text": text})

    def wait(self, code, timeout=60):
        end = time.time() + timeout
        while time.time() < end:
            value = self.script("return " + code)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError("never true: " + code + "\n" + self.script("return document.body.innerText"))

    def errors(self):
        return [entry for entry in self.call("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def quit(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()


IDLE = "!document.querySelector('#send').hidden && document.querySelectorAll('.message.assistant').length == %d"


@unittest.skipUnless(DRIVER, "there is no chromedriver (Debian: chromium-driver)")
class Page(ServerTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        super().tearDownClass()

    def setUp(self):
        self.browser.open("http://127.0.0.1:%d/" % self.server.port)
        self.browser.script("localStorage.clear()")
        self.browser.open("http://127.0.0.1:%d/" % self.server.port)
        self.set("temperature", "0")

    def set(self, name, value):
        self.browser.script("const e = document.getElementById(%s); e.value = %s; e.dispatchEvent(new Event('change'))"
                            % (json.dumps(name), json.dumps(value)))

    def text(self, selector):
        return self.browser.script("return document.querySelector(%s).textContent" % json.dumps(selector))

    def test_a_conversation(self):
        b = self.browser
        b.wait("document.getElementById('model').textContent == 'nano'")
        b.type("#input", "What is 27 + 48?" + ENTER)
        b.wait(IDLE % 1)
        self.assertEqual(self.text(".message.assistant > .text"), "27 + 48 = 75.")
        self.assertIn("write 5", self.text(".message.assistant details .text"))
        self.assertFalse(b.script("return document.querySelector('.message.assistant details').open"))  # folded
        self.assertIn("per second", self.text(".stats"))
        b.click("#thinking")
        b.type("#input", "What is 5 + 9?" + ENTER)
        b.wait(IDLE % 2)
        self.assertTrue(b.script("return [...document.querySelectorAll('details')].pop().hidden"))
        b.click("#theme")
        self.assertIn(b.script("return document.documentElement.dataset.theme"), ["dark", "light"])
        if SCREENSHOT:
            b.script("document.documentElement.dataset.theme = 'light'; document.querySelector('details').open = true")
            with open(SCREENSHOT, "wb") as file:
                file.write(base64.b64decode(b.call("GET", "/screenshot")))
        b.click("#new")
        self.assertEqual(b.script("return document.querySelectorAll('.message').length"), 0)
        self.assertEqual(b.errors(), [])

    def test_stop_and_retry(self):
        b = self.browser
        self.set("temperature", "1")
        b.click("#thinking")
        b.script("const f = window.fetch; window.fetch = (u, o) => { if (o && o.body) { const x = JSON.parse(o.body); x.ignore_eos = "
                 "window.forever !== false; o = {...o, body: JSON.stringify(x)}; } return f(u, o); }")
        b.type("#input", "Tell me a story." + ENTER)
        b.wait("document.querySelector('.stats') && document.querySelector('.stats').textContent.includes('per second')")
        b.type("#input", ESCAPE)
        b.wait("document.querySelector('.error') && document.querySelector('.error').textContent == 'Stopped.'")
        self.server.wait_until_idle()  # the server has stopped, too
        b.script("window.forever = false")
        self.set("max_tokens", "5")
        b.wait("[...document.querySelectorAll('button')].some(x => x.textContent == 'try again')")
        b.script("[...document.querySelectorAll('button')].find(x => x.textContent == 'try again').click()")
        b.wait("document.body.innerText.includes('limit of tokens') || !document.querySelector('#send').hidden")
        self.assertEqual(b.script("return document.querySelectorAll('.message.user').length"), 1)

    def test_tools_are_shown_and_answered(self):
        b = self.browser
        self.set("tools", json.dumps([WEATHER_TOOL]))
        b.click("#thinking")
        b.type("#input", "What is the weather in Paris?" + ENTER)
        b.wait(IDLE % 1)
        self.assertIn("get_weather({\"city\": \"Paris\"", self.text(".call"))
        b.type("form.message.tool input", '{"city": "Paris", "temperature": 18, "unit": "celsius", "sky": "clear"}' + ENTER)
        b.wait(IDLE % 2)
        self.assertIn("18", b.script("return [...document.querySelectorAll('.message.assistant > .text')].pop().textContent"))

    def test_errors_are_shown_and_text_is_never_markup(self):
        b = self.browser
        self.set("tools", "{")
        b.type("#input", "<img src=x onerror='window.hacked = 1'>" + ENTER)
        b.wait("document.querySelector('.error')")
        self.assertIn("not valid JSON", self.text(".error"))
        self.set("tools", "")
        self.set("top_p", "7")
        b.type("#input", "again" + ENTER)
        b.wait("[...document.querySelectorAll('.error')].pop().textContent.includes('top_p')")
        self.assertFalse(b.script("return !!window.hacked || !!document.querySelector('img')"))


if __name__ == "__main__":
    main()
