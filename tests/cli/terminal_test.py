#!/usr/bin/env python3
"""Commands at a terminal: chat and its line editor, progress, Ctrl-C."""

import json
import os
import pty
import re
import select
import shlex
import signal
import stat
import termios
import time
from pathlib import Path

from support import BINARY, CliTestCase, HAS_GOLDEN, HAS_TOKENIZER, SLOWNESS, main, make_text_model, run


class Terminal(CliTestCase):
    """Runs commands in a pseudo-terminal."""

    state = "state"  # a path in the test's folder, or nothing

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

    def start(self, *args, size=None):
        pid, self.terminal = pty.fork()
        if pid == 0:
            if size:
                termios.tcsetwinsize(0, size)
            os.execve(BINARY, [BINARY, *map(str, args)],
                      {**os.environ, "TERM": "xterm", "HOME": str(self.tmp), "XDG_STATE_HOME": self.state and str(self.tmp / self.state)})
        self.addCleanup(os.close, self.terminal)
        self.seen = b""
        return pid

    def wait_for(self, text, timeout=120, keep=False):
        end = time.monotonic() + timeout * SLOWNESS
        while text not in self.seen:
            self.assertLess(time.monotonic(), end, self.seen)
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 4096)
        if not keep:
            self.seen = self.seen[self.seen.index(text) + len(text) :]

    def wait_for_words(self):
        """Waits for text that is not a control sequence."""
        while not re.sub(rb"\x1b(\[[0-9;?]*[a-zA-Z]?)?|[\r\n]", b"", self.seen):
            self.seen += os.read(self.terminal, 4096)

    def send(self, text):
        os.write(self.terminal, text)

    def ends(self, pid, status, seconds=120):
        start = time.monotonic()
        while time.monotonic() < start + seconds * SLOWNESS:
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
        self.wait_for_words()  # the reply has begun, and without EOS it continues
        self.send(b"\x03")
        self.wait_for(b"(stopped)")
        self.wait_for(b"> ")
        self.send(b"\x04")
        self.ends(pid, 0)

    def chat(self, *args):
        if b"dsv4-paste" not in Path(BINARY).read_bytes():
            self.skipTest("the program was built without libedit")
        pid = self.start("chat", *self.model, "--no-thinking", "--temperature", "0", "-n", "1", *args)
        self.wait_for(b"\x1b[?2004h> ")
        return pid

    def line(self, keys):
        self.send(keys)
        self.wait_for(b"\x1b[?2004l")  # the line is complete
        self.wait_for(b"\x1b[?2004h> ")  # the next one may begin

    def users_messages(self):
        path = self.tmp / "saved.json"
        self.line(b"/save %s\r" % str(path).encode())
        return [m["content"] for m in json.loads(path.read_text())["messages"] if m["role"] == "user"]

    def quit(self, pid):
        self.send(b"\x04")
        self.ends(pid, 0)

    def test_ctrl_c_twice_at_the_prompt_ends(self):
        pid = self.chat()
        self.line(b"\x03")
        self.line(b"x\r")  # a line between them
        self.send(b"\x03")
        self.wait_for(b"(Ctrl-C again or Ctrl-D ends the chat)")
        self.wait_for(b"\x1b[?2004h> ")
        self.send(b"\x03")
        self.ends(pid, 130)

    def test_ctrl_c_drops_the_line(self):
        pid = self.chat()
        self.line(b"wrong\x03")
        self.line(b"right\r")
        self.assertEqual(self.users_messages(), ["right"])
        self.quit(pid)

    def test_lines_are_edited_with_arrows(self):
        pid = self.chat()
        self.line("für 漢字\x1b[D\x1b[DX\x01_\x05!\r".encode())
        self.line(b"\x1b[A\x7f?\r")
        self.assertEqual(self.users_messages(), ["_für X漢字!", "_für X漢字?"])
        self.quit(pid)

    def test_a_paste_is_one_message(self):
        pid = self.chat()
        lines = ["line %d" % i for i in range(40)]  # more lines than the terminal has
        self.line(b"see: \x1b[200~" + "\r".join(lines).encode() + b"\r\x1b[201~\r")
        self.line(b"\x1b[200~/quit\nis a command\x1b[31m\x07\x1b[201~\r")
        self.line(b"one\x1b\rtwo\r")
        self.assertEqual(self.users_messages(), ["see: " + "\n".join(lines), "/quit\nis a command[31m", "one\ntwo"])
        self.quit(pid)

    def test_a_tools_result_that_does_not_fit_may_be_given_again(self):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        path = self.file("call.json", json.dumps({"messages": [{"role": "user", "content": "Hi"},
                                                               {"role": "assistant", "content": "", "tool_calls": [call]}]}))
        pid = self.chat("--ctx", "600")
        self.line(b"/load %s\r" % str(path).encode())
        self.send(b"/tool %s\r" % (b"x y " * 700))
        self.wait_for(b"longer than the context of 600")
        self.wait_for(b"\x1b[?2004h> ")
        self.line(b"/tool 42\r")
        self.line(b"/save %s\r" % str(path).encode())
        self.assertEqual([m["role"] for m in json.loads(path.read_text())["messages"]], ["user", "assistant", "tool", "assistant"])
        self.quit(pid)

    def test_history_is_kept_for_its_owner(self):
        pid = self.chat()
        self.line(b"first\r")
        self.line(b"\x1b[200~two\nlines\x1b[201~\r")
        self.quit(pid)
        path = self.tmp / "state" / "dsv4" / "chat-history"
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(path.parent.stat().st_mode), 0o700)
        pid = self.chat()
        self.line(b"\x1b[A\r")
        self.line(b"\x1b[A\x1b[A\x1b[A\r")  # /save is not in the history yet; a repeated line is there once
        self.assertEqual(self.users_messages(), ["two\nlines", "first"])
        self.quit(pid)
        before = path.read_bytes()
        pid = self.chat("--no-history")
        self.line(b"secret\r")
        self.quit(pid)
        self.assertEqual(path.read_bytes(), before)

    def test_a_history_that_is_no_file_of_its_own_is_not_read(self):
        for number, make in enumerate([os.mkfifo, lambda path: path.symlink_to("/dev/zero"),
                                       lambda path: path.symlink_to(self.tmp / "other"),
                                       lambda path: path.write_bytes(bytes(17 << 20))]):
            self.state = "state%d" % number
            folder = self.tmp / self.state / "dsv4"
            folder.mkdir(parents=True)
            make(folder / "chat-history")
            was = os.lstat(folder / "chat-history")
            pid = self.start("chat", *self.model, "--no-thinking", "--temperature", "0", "-n", "1")
            self.wait_for(b"there is no history")
            self.wait_for(b"> ")
            self.send(b"Hello\r")
            self.wait_for(b"> ")
            self.quit(pid)
            now = os.lstat(folder / "chat-history")
            self.assertEqual((now.st_ino, now.st_mode, now.st_size), (was.st_ino, was.st_mode, was.st_size))

    def forced(self, text):
        """Flags that make the model write only the token of `text`."""
        ids = run("tokenize", *self.model, stdin=text).stdout.split()
        self.assertEqual(len(ids), 1, text)
        return ["--logit-bias", ids[0].decode() + "=inf", "--temperature", "0"]

    def test_what_a_model_writes_is_shown_and_not_obeyed(self):
        for character, shown in [("\x1b", b"\\x1b"), ("\x07", b"\\x07"), ("\b", b"\\x08"), ("\x7f", b"\\x7f")]:
            forced = self.forced(character)
            piped = run("generate", *self.model, *forced, "-p", "x", "-n", "3")
            self.assertEqual(piped.stdout, 3 * character.encode())  # a pipe gets the bytes
            self.start("generate", *self.model, *forced, "-p", "x", "-n", "3")
            self.wait_for(3 * shown + b"\r\n")
            pid = self.start("chat", *self.model, *forced, "--no-thinking", "--no-history", "-n", "3")
            self.wait_for(b"> ")
            self.send(b"Hello\r")
            self.wait_for(3 * shown + b"\r\n")
            self.wait_for(b"> ")
            self.quit(pid)

    def test_marks_of_direction_are_shown(self):
        ids = run("tokenize", *self.model, stdin="a\u202eb\u2066c\u0085").stdout
        pid = self.start("detokenize", *self.model)
        self.send(ids + b"\x04")
        self.wait_for(b"a\\u202eb\\u2066c\\u0085")
        self.ends(pid, 0)

    def test_replies_break_between_words(self):
        forced = self.forced(" the")
        pid = self.start("chat", *self.model, *forced, "--no-thinking", "--no-history", "-n", "25", size=(24, 30))
        self.wait_for(b"> ")
        self.send(b"Hello\r")
        self.wait_for(b"the the")  # the progress line has one
        self.send(b"\x04")
        while b"> " not in self.seen:
            self.seen += os.read(self.terminal, 4096)
        lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", b" the the" + self.seen.split(b"> ")[0]).decode().splitlines()
        lines = [line for line in lines if line]
        self.assertEqual(" ".join(lines).split(), 25 * ["the"])
        self.assertGreater(len(lines), 3)
        for line in lines:
            self.assertLessEqual(len(line), 30)
        self.ends(pid, 0)

    def test_help_breaks_between_words_and_finds_words(self):
        pid = self.start("chat", *self.model, "--no-history", size=(50, 50))
        self.wait_for(b"> ")
        self.send(b"/help\r")
        self.wait_for(b"/help\r\n")
        self.wait_for(b"> ")
        self.send(b"/help conversation\r")
        self.wait_for(b"/help conversation\r\n")
        self.wait_for(b"/system TEXT")
        self.wait_for(b"/save FILE")
        self.wait_for(b"/load FILE")
        self.wait_for(b"/reset")
        self.wait_for(b"> ")
        self.send(b"/help nothing\r")
        self.wait_for(b"no command has the word nothing")
        self.quit(pid)

    def test_history_in_the_home_folder(self):
        self.state = ""
        pid = self.chat()
        self.line(b"x\r")
        self.quit(pid)
        self.assertIn("\nx\n", (self.tmp / ".local" / "state" / "dsv4" / "chat-history").read_text())

    def test_sigterm_at_the_prompt_leaves_the_terminal_as_it_was(self):
        pid = self.chat()
        edited = termios.tcgetattr(self.terminal)[3]
        self.assertFalse(edited & (termios.ICANON | termios.ISIG))
        os.kill(pid, signal.SIGTERM)
        self.wait_for(b"\x1b[?2004l")
        self.ends(pid, 130)
        after = termios.tcgetattr(self.terminal)[3]
        self.assertEqual(after & (termios.ICANON | termios.ISIG), termios.ICANON | termios.ISIG)

    def test_keys_during_a_reply_wait_for_the_prompt(self):
        pid = self.start("chat", *self.model, "--logit-bias", "1=-inf", "-n", "400")
        self.wait_for(b"\x1b[?2004h> ")
        self.send(b"Hello\r")
        self.wait_for(b"\x1b[?2004l")
        self.send(b"ahead\r\x04")
        self.wait_for(b"\x1b[?2004l")  # the line that was typed ahead
        self.ends(pid, 0)

    def test_ctrl_z_suspends(self):
        pid = self.chat()
        self.send(b"be\x1a")
        self.wait_for(b"\x1b[?2004l")
        # The kernel does not stop a session leader in its own terminal, because no process could continue it.
        self.wait_for(b"\x1b[?2004h")
        self.line(b"gun\r")
        self.assertEqual(self.users_messages(), ["begun"])
        self.quit(pid)

    def test_without_a_command_it_says_what_to_do(self):
        pid = self.start(size=(40, 100))
        self.wait_for(b"dsv4 --help lists all commands.\r\n", keep=True)
        self.ends(pid, 2)
        text = self.seen.decode()
        self.assertRegex(text, r"This machine has \d+ cores? with ")
        self.assertNotIn("error", text)
        commands = re.findall(r"^  dsv4 (.*?)(?:  .*)?\r$", text, re.M)
        self.assertEqual([command.split()[0] for command in commands], ["generate", "chat", "serve", "inspect", "chat"])
        for command in commands:  # the flags exist
            self.ok(*shlex.split(command), "--help")
        self.assertTrue(self.ok(*shlex.split(commands[0])))

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

    def test_progress_in_a_narrow_terminal_stays_in_one_line(self):
        ids = self.file("ids.txt", "1 2 3 " * 4000)
        pid = self.start("generate", *self.model, "--token-ids", ids, "-n", "1", "--prefill-chunk", "64", size=(4, 24))
        shown = b""
        while shown.count(b"\r\x1b[K") < 5:
            shown += os.read(self.terminal, 4096)
        for line in shown.split(b"\r\x1b[K")[1:-1]:
            self.assertRegex(line, rb"^reading the prompt \d+%$")
        self.send(b"\x03")
        self.ends(pid, 130)

    def test_progress_of_a_benchmark(self):
        pid = self.start("bench", *self.model, "--prompts", "64", "--contexts", "64", "--batches", "1", "--tokens", "16",
                         "--repeat", "400", "--budget", "1", "--no-ops", "--ctx", "8192")
        for text in [b"prefill 64 tokens [", b"tok/s", b"decode batch 1 context 64 [", b"% of the byte floor"]:
            self.wait_for(text)
        self.ends(pid, 0)


if __name__ == "__main__":
    main()
