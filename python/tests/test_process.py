"""Ctrl-C, forks, the end of the interpreter, the program of the package, and what the extension shows of itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dsv4

INTERRUPT = """
    import os, signal, threading, time
    import dsv4

    def interrupted(call):
        '''Seconds from Ctrl-C to KeyboardInterrupt.'''
        sent = []
        def send():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        timer = threading.Timer({after}, send)
        timer.start()
        try:
            call()
        except KeyboardInterrupt:
            return time.monotonic() - sent[0]
        raise SystemExit("the call ended before Ctrl-C")

    {prepare}
    print(min(interrupted(lambda: {call}) for _ in range(3)))
"""
ENDLESS = "dsv4.SamplingParams(max_tokens=-1, ignore_eos=True)"
CALLS = {
    "generate": ("llm = dsv4.LLM(kv_budget='512MiB')", f"llm.generate('In the', {ENDLESS})"),
    "list": ("llm = dsv4.LLM(kv_budget='512MiB')", f"llm.generate(['In the'] * 5, {ENDLESS})"),
    "stream": ("llm = dsv4.LLM(kv_budget='512MiB')", f"list(llm.stream('In the', {ENDLESS}))"),
    "score": ("llm = dsv4.LLM(kv_budget='512MiB')", "llm.score([7, 8, 9] * 20000)"),
    "append": ("engine = dsv4.Engine()", "engine.new_session().append([7, 8, 9] * 20000)"),
    "one chunk": ("engine = dsv4.Engine(prefill_chunk=60000)", "engine.new_session().append([7, 8, 9] * 20000)"),
    "step": ("engine = dsv4.Engine()", "engine.step([(engine.new_session(), [7, 8, 9] * 20000)])"),
}


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_ends_a_call_within_half_a_second(run_python, name):
    prepare, call = CALLS[name]
    assert float(run_python(INTERRUPT.format(after=0.3, prepare=prepare, call=call))) < 0.5


def test_ctrl_c_in_an_event_loop(run_python):
    run_python(f"""
        import asyncio, os, signal, threading
        import dsv4
        llm = dsv4.LLM(kv_budget="64MiB")
        async def main():
            async for _ in llm.astream("In the", {ENDLESS}):
                pass
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted")
        while llm.stats()["open"]: pass
    """)


def test_an_engine_works_after_ctrl_c(run_python):
    run_python("""
        import _thread, threading
        import dsv4
        engine = dsv4.Engine()
        session = engine.new_session()
        threading.Timer(0.2, _thread.interrupt_main).start()
        try:
            session.append([7, 8, 9] * 20000)
            raise SystemExit(1)
        except KeyboardInterrupt:
            pass
        tokens = session.tokens
        again = engine.new_session()
        if tokens:
            again.append(tokens, logits="none")
        assert (again.append([5]) == session.append([5])).all()
    """)


def test_a_forked_child_gets_an_error_and_may_load_its_own(run_python):
    out = run_python("""
        import os, sys
        import dsv4
        llm, engine = dsv4.LLM(kv_budget="64MiB"), dsv4.Engine()
        session = engine.new_session()
        session.append([1, 2, 3])
        snapshot = session.snapshot()
        stream = llm.stream("In the", dsv4.SamplingParams(max_tokens=-1))
        next(stream)
        child = os.fork()
        if child == 0:
            calls = [lambda: llm.generate("x"), lambda: session.append([1]), engine.new_session, lambda: next(stream),
                     lambda: bytes(snapshot), lambda: engine.step([(session, [1])]), llm.stats, lambda: llm.score("a b c")]
            for call in calls:
                try:
                    call()
                    sys.exit(1)
                except dsv4.ForkError as error:
                    assert "spawn" in str(error)
            del llm, engine, session, stream, snapshot, calls, call
            with dsv4.LLM(kv_budget="64MiB") as own:
                print(own.generate("In the beginning", dsv4.SamplingParams(temperature=0, max_tokens=3)).text, flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        next(stream)
        session.append([4])
    """)
    assert out.strip() == "of the reign"


def test_pools_of_processes(run_python, tmp_path):
    (tmp_path / "work.py").write_text("import dsv4\ndef work(n):\n    return dsv4.Engine().new_session().append([n]).shape\n")
    out = run_python("""
        import multiprocessing, work
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(work.work, [1, 2]))
    """, PYTHONPATH=str(tmp_path))
    assert out.strip() == "[(1, 4096), (1, 4096)]"


END = {
    "a stream": f"stream = llm.stream('In the', {ENDLESS}); next(stream)",
    "a stream in a daemon thread": f"threading.Thread(target=lambda: list(llm.stream('In the', {ENDLESS})), daemon=True).start()",
    "a call in a daemon thread": "engine = dsv4.Engine(); threading.Thread(target=lambda: engine.new_session().append([7, 8, 9] "
                                 "* 20000), daemon=True).start()",
    "an async generator": f"""import asyncio
        async def first():
            await llm.astream('In the', {ENDLESS}).__anext__()
        asyncio.run(first())""",
    "a reference cycle": f"a = [llm, llm.stream('In the', {ENDLESS}), dsv4.Engine()]; a.append(a); next(a[1])",
    "nothing": "pass",
}


@pytest.mark.parametrize("what", END)
@pytest.mark.parametrize("how", ["", "sys.exit(0)"])
def test_the_interpreter_ends_cleanly(run_python, what, how):
    out = run_python(f"""
        import sys, threading, time
        import dsv4
        llm = dsv4.LLM(kv_budget="64MiB")
        {END[what]}
        time.sleep(0.2)
        print("end", flush=True)
        {how}
    """)
    assert out == "end\n"


def test_a_thread_that_is_no_daemon_ends_with_an_error(run_python):
    """Its reply would never end. Python runs atexit functions after such threads, so it has to leave the loop itself."""
    run_python(f"""
        import threading, time
        import dsv4
        llm = dsv4.LLM(kv_budget="64MiB")
        def read():
            try:
                for _ in llm.stream("In the", {ENDLESS}): pass
            except dsv4.Error:
                print("ended")
        threading.Thread(target=read).start()
        time.sleep(0.2)
        llm.close()
    """)


def test_import_needs_no_numpy(run_python):
    run_python("import sys, dsv4; assert 'numpy' not in sys.modules")


def test_the_bundled_model_and_the_program(tmp_path):
    script = Path(sys.executable).parent / "dsv4"
    assert script.exists() and dsv4.bundled_model().is_relative_to(Path(dsv4.__file__).parent)
    flags = ["generate", "-p", "In the beginning", "-n", "24", "--temperature", "0"]
    done = subprocess.run([script, *flags], cwd=tmp_path, capture_output=True, text=True, check=True)
    with dsv4.LLM(kv_budget="64MiB") as llm:
        params = dsv4.SamplingParams(temperature=0, max_tokens=24)
        assert done.stdout.strip("\n") == llm.generate("In the beginning", params).text.strip("\n")
    version = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert dsv4.__version__ in version
    assert subprocess.run([script, "no-such-command"], capture_output=True).returncode == 2


def test_the_two_lines_of_the_readme(run_python):
    assert "reign" in run_python("""
        import dsv4
        print(dsv4.LLM().generate("In the beginning", dsv4.SamplingParams(temperature=0, max_tokens=40)).text)
    """)


def test_the_extension_exports_only_its_entry():
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    found = subprocess.run(["nm", "-D", "--defined-only", dsv4._dsv4.__file__], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in found.splitlines()] == ["PyInit__dsv4"]


def test_the_extension_needs_only_the_compilers_libraries():
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    found = subprocess.run(["objdump", "-p", dsv4._dsv4.__file__], capture_output=True, text=True, check=True).stdout
    needed = {line.split()[1].split(".")[0] for line in found.splitlines() if line.split()[:1] == ["NEEDED"]}
    assert needed <= {"libstdc++", "libgcc_s", "libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert os.path.dirname(dsv4.__file__) == os.path.dirname(dsv4._dsv4.__file__)
