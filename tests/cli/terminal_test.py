#!/usr/bin/env python3
"""What a person at a terminal sees: chat, progress, Ctrl-C."""

import os
import pty
import select
import signal
import time

from support import BINARY, CliTestCase, HAS_GOLDEN, HAS_TOKENIZER, SLOWNESS, main, make_text_model


class Terminal(CliTestCase):
    """What a person at a terminal sees, through a pseudo-terminal."""

    def setUp(self):
        super().setUp()
        if not (HAS_GOLDEN and HAS_TOKENIZER):
            self.skipTest("tests/golden/flash-nvfp4 or models/nano/tokenizer.json is absent")
        try:  # a bare chroot has no /dev/pts
            for end in os.openpty():
                os.close(end)
        except OSError as error:
            self.skipTest(f"there are no pseudo-terminals here: {error}")
        self.model = ["-m", make_text_model(self.tmp / "model")]

    def start(self, *args):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.execv(BINARY, [BINARY, *map(str, args)])
        self.addCleanup(os.close, self.terminal)
        self.seen = b""
        return pid

    def wait_for(self, text, timeout=20):
        end = time.monotonic() + timeout * SLOWNESS
        while text not in self.seen:
            self.assertLess(time.monotonic(), end, self.seen)
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 4096)
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def send(self, text):
        os.write(self.terminal, text)

    def ends(self, pid, status):
        start = time.monotonic()
        while time.monotonic() < start + 5:
            try:  # a full terminal would block the process
                if select.select([self.terminal], [], [], 0.05)[0]:
                    os.read(self.terminal, 4096)
            except OSError:
                pass
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                self.assertEqual(os.waitstatus_to_exitcode(code), status)
                return
        os.kill(pid, signal.SIGKILL)
        self.fail("still running")

    def test_ctrl_c_stops_a_reply_and_ctrl_d_ends(self):
        pid = self.start("chat", *self.model, "--thinking", "--logit-bias", "1=-inf")  # EOS is banned: it never ends
        self.wait_for(b"> ")
        self.send(b"Hello\n")
        self.wait_for(b"\x1b[2m")  # reasoning is dim
        self.send(b"\x03")
        self.wait_for(b"(stopped)")
        self.wait_for(b"> ")
        self.send(b"/think\n")
        self.wait_for(b"reasoning is off")
        self.wait_for(b"> ")
        self.send(b"two\\\n")
        self.wait_for(b". ")
        self.send(b"lines\n")
        self.wait_for(b"lines\r\n")
        time.sleep(0.5)  # the reply has begun, and without EOS it goes on
        self.send(b"\x03")
        self.wait_for(b"(stopped)")
        self.wait_for(b"> ")
        self.send(b"\x04")
        self.ends(pid, 0)

    def test_ctrl_c_at_the_prompt_ends(self):
        pid = self.start("chat", *self.model)
        self.wait_for(b"> ")
        self.send(b"\x03")
        self.ends(pid, 130)

    def test_generate_without_a_prompt_does_not_wait(self):
        pid = self.start("generate", *self.model)
        self.wait_for(b"dsv4: error: no prompt")
        self.ends(pid, 2)

    def test_progress_of_a_long_prompt(self):
        ids = self.file("ids.txt", "1 2 3 " * 4000)
        pid = self.start("generate", *self.model, "--token-ids", ids, "-n", "1", "--prefill-chunk", "64")
        self.wait_for(b"reading the prompt [")
        self.send(b"\x03")
        self.ends(pid, 130)


if __name__ == "__main__":
    main()
