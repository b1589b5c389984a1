"""The first call of the SDK is as safe as every later one: against signals, threads, forks and the end of Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.nsml.test_sdk_spool import ROOT, read

MOMENTS_MS = (0.2, 1, 2, 3, 4, 6, 8, 10, 13, 17, 22)
"""From before the first call to after it: it takes some ten milliseconds where it loads what it needs."""


def run(folder: Path, program: str, *, is_in_session: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("NSML_RUN_DIR", None)
    if is_in_session:
        environment["NSML_RUN_DIR"] = str(folder)
    path = folder / "main.py"  # those that are spawned run it once more
    path.write_text(program)
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def reported(folder: Path) -> Counter[str]:
    """The names of all values in all files, which are whole."""
    files = [read(path) for path in (folder / "spool").glob("*.records")]
    return Counter(name for file in files for record in file for name in record["values"])


IN_A_HANDLER = """
import signal, nsml
def beat(*_):
    nsml.report(step=1, beat=1)
signal.signal(signal.SIGALRM, beat)
signal.setitimer(signal.ITIMER_REAL, {ms} / 1000)
nsml.report(step=0, first=1)
signal.setitimer(signal.ITIMER_REAL, 0)
signal.raise_signal(signal.SIGALRM)
print("lived")
"""

FORK_IN_A_HANDLER = """
import os, signal, nsml
children, parent = [], os.getpid()
def beat(*_):
    child = os.fork()
    if child:
        children.append(child)
        if len(children) >= 3:  # where a fork takes longer than the pause, the loop would come to nothing
            signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        nsml.report(child=1)
signal.signal(signal.SIGALRM, beat)
signal.setitimer(signal.ITIMER_REAL, {ms} / 1000, 0.002)
for step in range(200):
    nsml.report(step=step, loop=1)
    if os.getpid() != parent or len(children) >= 3:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
if os.getpid() != parent:
    os._exit(0)
for child in children:
    assert os.waitpid(child, 0)[1] == 0, "the child lives"
print("lived")
"""

FORK_BESIDE_A_THREAD = """
import os, signal, threading, time, nsml
thread = threading.Thread(target=lambda: nsml.report(step=0, thread=1))
thread.start()
time.sleep({ms} / 1000)
child = os.fork()
if child == 0:
    signal.alarm(30)
    nsml.report(step=0, child=1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child lives"
thread.join()
print("lived")
"""

PROCESSES = """
import multiprocessing, nsml
def work(number):
    nsml.report(child=number)
if __name__ == "__main__":
    for kind in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(kind)
        children = [context.Process(target=work, args=(number,)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0, kind
    print("lived")
"""

AT_THE_END = """
import atexit, threading, nsml
atexit.register(lambda: nsml.report(end=1))
class Last:
    def __del__(self):
        nsml.report(last=1)
last = Last()
threading.Thread(target=lambda: [nsml.report(thread=1) for _ in range(100_000)], daemon=True).start()
print("lived")
"""


PYTHON_LOST_A_LOCK = re.compile(r"_bootstrap>\", line \d+, in acquire\nKeyError: \d+\n\Z")
"""An import within an import that a handler interrupted, before Python 3.13 (gh-106176): without a session we load late."""


@pytest.mark.parametrize(
    ("program", "is_in_session"),
    [
        pytest.param(IN_A_HANDLER, True, id="handler"),
        pytest.param(IN_A_HANDLER, False, id="handler, no session"),
        pytest.param(FORK_BESIDE_A_THREAD, True, id="fork"),
        pytest.param(FORK_BESIDE_A_THREAD, False, id="fork, no session"),
        # Not without a session: Python itself does not go on with an import in which a handler forks.
        pytest.param(FORK_IN_A_HANDLER, True, id="fork in a handler"),
    ],
)
def test_the_first_report_at_any_moment(tmp_path: Path, program: str, is_in_session: bool) -> None:
    for ms in MOMENTS_MS:
        folder = tmp_path / str(ms)
        folder.mkdir()
        done = run(folder, program.format(ms=ms), is_in_session=is_in_session)
        if not is_in_session and PYTHON_LOST_A_LOCK.search(done.stderr):
            continue
        assert done.stdout.endswith("lived\n"), (ms, done.stdout, done.stderr)
        assert "Error" not in done.stderr, (ms, done.stderr)
        if not is_in_session:
            continue
        found = reported(folder)
        if program == IN_A_HANDLER:
            assert found["first"] == 1
            assert found["beat"] in (1, 2), "once for each signal"
        elif program == FORK_BESIDE_A_THREAD:
            assert found == {"thread": 1, "child": 1}
        else:
            assert found["loop"] >= 1


FORK_AT_EACH_LINE = """
import os, sys
from nsml._spool import Spool
spools = []
os.register_at_fork(after_in_child=lambda: spools[-1].after_fork())
parent = os.getpid()
for number in range(120):
    spools.append(Spool(f"{number}/spool"))
    lines = iter(range(10_000))
    def fork(frame, event, argument):
        if not frame.f_code.co_filename.endswith("_spool.py"):
            return None
        if event == "line" and next(lines) == number:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            else:
                spools[-1].append(b'{"values": {"child": 1}}')
        return fork
    sys.settrace(fork)
    spools[-1].append(b'{"values": {"both": 1}}')
    sys.settrace(None)
    if os.getpid() != parent:
        os._exit(0)
print(next(lines))
"""


def test_a_fork_at_each_line_of_the_first_append_damages_no_file(tmp_path: Path) -> None:
    done = run(tmp_path, FORK_AT_EACH_LINE, is_in_session=False)
    assert int(done.stdout) < 120, "all lines were tried"
    for number in range(120):
        found = reported(tmp_path / str(number))
        assert found["both"] in {1, 2}, number


def test_processes_of_every_kind_report_first_of_all(tmp_path: Path) -> None:
    done = run(tmp_path, PROCESSES, is_in_session=True)
    assert done.stdout == "lived\n", done.stderr
    assert reported(tmp_path) == {"child": 6}


@pytest.mark.parametrize("is_in_session", [True, False], ids=["session", "alone"])
def test_the_first_report_as_python_ends(tmp_path: Path, is_in_session: bool) -> None:
    done = run(tmp_path, AT_THE_END, is_in_session=is_in_session)
    assert (done.returncode, done.stdout, done.stderr) == (0, "lived\n", "")
    if is_in_session:
        assert reported(tmp_path)["end"] == 1


EVERY_CALL = """
import os, sys, nsml
before = set(sys.modules)
pixels = [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 5]]]
nsml.report(step=1, loss=0.5, val={"a": [1, 2]})
nsml.image("i", pixels, 1)
nsml.feature_map("f", pixels, 1)
nsml.video("v", [pixels, pixels], 1)
nsml.audio("a", [0.0, 0.5], 1)
nsml.text("t", "x", 1)
nsml.histogram("h", [1, 2], 1)
nsml.embedding("e", [[1, 2]], 1, labels=["x"])
nsml.table("b", [{"x": 1}], 1)
nsml.bind(save=lambda folder: open(os.path.join(folder, "w"), "w").close(), load=lambda folder: None)
nsml.save("one")
nsml.load("one")
loaded = set(sys.modules)
nsml.bind(model={"a": 1})
before |= set(sys.modules) - loaded  # pickle: a handler saves what was bound before, until the call returns
nsml.save("two")
nsml.load("two")
print(sorted(set(sys.modules) - before))
"""


def test_in_a_session_no_call_loads_anything_any_more(tmp_path: Path) -> None:
    """A handler that calls in the middle of a call would find half a module."""
    ended = run(tmp_path, EVERY_CALL, is_in_session=True)
    assert ended.stdout.strip() == "[]", ended.stderr
