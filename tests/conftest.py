"""What holds for every test."""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from nsml.common.python_gc import collect_seldom
from tests.support.code_constants import leave_out_constants_of_code
from tests.support.examples import examples
from tests.support.migrated import copy_migrated_histories

pytest_plugins = ["tests.support.leftovers", "tests.durations", "tests.shares", "tests.lanes"]

# A busy machine may hold up any example for longer than Hypothesis lets it take (0.2 s), or the
# making of them (1 s): neither tells of the code.
settings.register_profile(
    "nsml",
    settings.default,
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nsml")
leave_out_constants_of_code()

copy_migrated_histories()

# A test that logs an exception would have Rich draw it, with colours and every local variable, for half a
# second of a processor; and nobody looks at it unless the test fails.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)

# A shell starts what runs in its background with Ctrl-C and Ctrl-\ ignored, and programs inherit that. Tests
# that interrupt programs must find them as a terminal's shell would have them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Where Python is told to keep no bytecode, as in images of containers, each worker would rewrite every
# test anew, and each of the hundreds of programs that tests start compile this project.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Agents that tests start find no container engine unless a test names one: whether the machine has
# one must not decide what is tested.
os.environ.setdefault("NSML_AGENT_ENGINE_SOCKET", "/nonexistent/engine.sock")

# What people read shows times in the machine's zone.
os.environ["TZ"] = "UTC"
time.tzset()

TESTS = Path(__file__).parent
MOST_WORKERS = 16
LONGEST_REASON = 500
LONGEST_WORDS = 160
LONGEST_END_S = 900
"""So long may fixtures of a test take to end, as `faulthandler_timeout` has it for all of a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give long runs no limit."""
    for item in items:
        if _is_slow(item):
            item.add_marker(pytest.mark.timeout(0))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without looking for garbage; then look for it as seldom as the control plane does.

    A run collects a million objects that stay. Python's own thresholds look at all of them again and
    again, which takes a fifth of the processor's time.
    """
    gc.disable()
    try:
        _import_ahead(session.config)
        return (yield)
    finally:
        collect_seldom()
        gc.enable()


def _import_ahead(config: pytest.Config) -> None:
    """Have each worker begin elsewhere in a new checkout.

    pytest rewrites the asserts of each test file, and keeps the result beside it. Workers that collect
    in step would all rewrite all of them; so each begins with a part of its own, and finds the others'.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(TESTS.rglob("test_*.py"))
    number, of = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    for file in files[len(files) * number // of : len(files) * (number + 1) // of]:
        name = ".".join(file.relative_to(TESTS.parent).with_suffix("").parts)
        # What cannot be imported, or is skipped as a whole, is told when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """What `-n auto` means: two for each processor, since tests wait for programs half of the time."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return min(len(os.sched_getaffinity(0)) * 2, MOST_WORKERS)


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A soak lasts as long as it is told to."""
    if _is_slow(item):
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures that do not end have a limit, too: pytest takes its own back once a test has failed."""
    to = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(LONGEST_END_S, exit=True, file=to)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of a failure also the last words of the programs that ran: of a record only its end may be kept."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.failed and crash is not None and (last := list(_last_words(item))):
        reason, _, more = crash.message.partition("\n")
        report.sections.append(("last words", "\n".join(last)))
        crash.message = "\n".join([f"{reason} [{'; '.join(last)}]", *([more] if more else [])])
    return report


def _last_words(item: pytest.Item) -> Iterator[str]:
    """What programs of a test said last that tells of trouble: its command line, and each log."""
    used = list(getattr(item, "funcargs", {}).values())
    said = [getattr(one, "refused", None) for one in used]
    yield from (words for words in said if isinstance(words, str) and words)
    folders = {Path(getattr(one, "folder", one)) for one in used if _is_place(one)}
    for folder in sorted(folders):
        for log in sorted({*folder.glob("*.log"), *folder.glob("*/*.log"), *folder.glob("*/log")}):
            if words := _trouble(log):
                yield f"{log.parent.name}/{log.name}: {words[:LONGEST_WORDS]}"


def _is_place(one: object) -> bool:
    return isinstance(one, Path) or isinstance(getattr(one, "folder", None), Path)


def _trouble(log: Path) -> str:
    """The last line that is no note of what goes as it should."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    for line in reversed(lines):
        try:
            said = json.loads(line)
        except ValueError:
            said = {}
        if line.strip() and said.get("level") not in {"info", "debug"}:
            return line.strip()
    return ""


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Of each failure the first line is told whole at the end, not cut to the width of a screen."""
    config.get_terminal_writer().fullwidth = LONGEST_REASON


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[tuple[int, bool]]]:
    """Notes from its call on what is flushed to disk: the inode, and whether `path` was there."""

    def noted(path: Path) -> list[tuple[int, bool]]:
        found: list[tuple[int, bool]] = []
        flush = os.fsync

        def watched(descriptor: int) -> None:
            found.append((os.fstat(descriptor).st_ino, path.exists()))
            flush(descriptor)

        monkeypatch.setattr("os.fsync", watched)
        return found

    return noted
