#!/usr/bin/env python3
"""Records the requests of Claude Code and Codex in a session of 30 turns with tools, pictures and a compaction, for
replay_test.py.

    record_agents.py FOLDER [claude_code] [codex]

The clients are the pinned packages of agent_clients.py (170 MB from PyPI, once). They run headless in a scratch folder
against an upstream server that follows a script (agent_upstream.py); they use no other network. FOLDER gets their
requests word for word: their instructions are other people's text, so FOLDER stays outside the repository.
tests/server/recordings/ gets the same requests with every text replaced (scrub.py).
"""

import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

import agent_clients

agent_clients.enter()

import scrub
from agent_upstream import Turn, Upstream

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = Path(__file__).resolve().parent / "recordings"
TURNS, COMPACTED = 30, 20  # turns of the agent; it compacts before turn 20
TASK = "Read the parts of this project one after another and tell what each is for. Edit what is wrong."
KEPT_HEADERS = {"user-agent", "anthropic-beta", "anthropic-version", "anthropic-dangerous-direct-browser-access", "x-app", "originator",
                "accept", "x-codex-beta-features", "x-claude-code-session-id", "session-id", "x-codex-window-id", "x-codex-turn-metadata"}


def fill(folder):
    """Makes a project: parts of a page of this repository, a script, a picture."""
    text = (ROOT / "docs" / "dev" / "model.md").read_text()
    for i in range(TURNS):
        begin = 150 * i % (len(text) - 3000)
        (folder / ("part_%d.txt" % i)).write_text(text[begin:begin + (4000 if i == 11 else 300)])
    (folder / "picture.png").write_bytes(scrub.PICTURE)
    (folder / "CLAUDE.md").write_text("Small steps. Say what you did not do.\n")
    (folder / "AGENTS.md").write_text("Small steps. Say what you did not do.\n")


def claude_turn(i, folder):
    """The script of Claude Code for turn i."""
    part = str(folder / ("part_%d.txt" % i))
    run = ("Bash", {"command": "wc part_%d.txt && head -c 200 part_%d.txt" % (i, i), "description": "Look at a part"})
    calls = [("Read", {"file_path": part})]
    if i % 9 == 5:
        calls = [("Read", {"file_path": str(folder / "picture.png")})]
    elif i == 3:
        calls = [("ToolSearch", {"query": "select:WebFetch,TaskCreate", "max_results": 3})]
    elif i % 7 == 6:
        calls = [("Edit", {"file_path": str(folder / ("part_%d.txt" % (i - 2))), "old_string": "the", "new_string": "that",
                           "replace_all": True})]
    elif i % 11 == 8:
        calls = [("Bash", {"command": "cat missing_%d.txt" % i, "description": "Fails"})]
    elif i % 5 == 2:
        calls = [calls[0], run]
    elif i % 3 == 1:
        calls = [run]
    return Turn(calls, "I look at part %d next." % i if i % 3 else "", "The parts come in order." if i % 4 == 0 else "", i == COMPACTED - 1)


def codex_turn(i, folder):
    """The script of Codex for turn i."""
    commands = ["cat part_%d.txt" % i, "wc part_%d.txt && head -c 200 part_%d.txt" % (i, i), "cat missing_%d.txt" % i]
    run = lambda command: ("exec_command", {"cmd": command, "workdir": str(folder)})
    calls = [run(commands[i % 11 == 8 and 2 or i % 2])]
    if i % 9 == 5:
        calls = [("view_image", {"path": str(folder / "picture.png")})]
    elif i % 7 == 6:
        calls = [run("sed -i s/the/that/ part_%d.txt" % (i - 2))]
    elif i % 5 == 2:
        calls.append(run(commands[1]))
    return Turn(calls, "I look at part %d next." % i if i % 3 else "", "The parts come in order." if i % 4 == 0 else "", i == COMPACTED - 1)


def record(name, raw):
    with tempfile.TemporaryDirectory() as scratch:
        work, home = Path(scratch) / "work", Path(scratch) / "home"
        for folder in (work, home):
            folder.mkdir()
        fill(work)
        turn = {"claude_code": claude_turn, "codex": codex_turn}[name]
        upstream = Upstream([turn(i, work) for i in range(TURNS - 1)] + [Turn(text="All parts are read.")])
        command, environment = agent_clients.command(name, upstream.url, home, TASK, scripted=True)
        try:
            done = subprocess.run(command, env=environment, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, text=True)
        finally:
            upstream.stop()
    (raw / (name + ".json")).write_text(json.dumps(upstream.requests, indent=1))
    if done.returncode != 0 or upstream.next != TURNS:
        sys.exit("%s ended with %d after %d turns:\n%s" % (name, done.returncode, upstream.next, (done.stdout + done.stderr)[-4000:]))
    for request in upstream.requests:
        request["headers"] = {k.lower(): v for k, v in request["headers"].items() if k.lower() in KEPT_HEADERS}
        request["body"] = scrub.scrub(request["body"])
    print("%s: %d requests" % (name, len(upstream.requests)))
    text = json.dumps(upstream.requests, separators=(",", ":"))
    RECORDINGS.mkdir(exist_ok=True)
    (RECORDINGS / (name + ".json.xz")).write_bytes(lzma.compress(text.encode(), preset=9))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    raw = Path(sys.argv[1])
    if ROOT in raw.resolve().parents:
        sys.exit("%s is in the repository: give a folder outside it, because requests of clients must not get into it" % raw)
    raw.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or ["claude_code", "codex"]:
        record(name, raw)


if __name__ == "__main__":
    main()
