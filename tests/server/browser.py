"""A browser for tests: headless Chromium through chromedriver's WebDriver interface (Debian: chromium-driver)."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

DRIVER = shutil.which("chromedriver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, ESCAPE = "\ue007", "\ue00c"


class Browser:
    def __init__(self):
        end = time.time() + 120
        while not self.start() and time.time() < end:  # another program may take the port first
            pass
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,800",
                            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        session = self.call("POST", "/session", {"capabilities": capabilities})
        self.base += "/session/" + session["sessionId"]

    def start(self):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.process = subprocess.Popen([DRIVER, "--port=%d" % port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = "http://127.0.0.1:%d" % port
        while self.process.poll() is None:
            try:
                self.call("GET", "/status")
                return True
            except OSError:
                time.sleep(0.05)
        return False

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError("%s %s: %s" % (path, data[:500], json.load(error)["value"]["message"])) from None

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def script(self, code, *args):
        return self.call("POST", "/execute/sync", {"script": code, "args": list(args)})

    def devtools(self, command, **params):
        """Sends a command of the DevTools protocol, if WebDriver has none for the purpose."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", "/element/%s/click" % self.find(selector), {})

    def type(self, selector, text):
        self.call("POST", "/element/%s/value" % self.find(selector), {"text": text})

    def wait(self, code, timeout=300):
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
