"""What holds for every test."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

# A shell starts what runs in its background with Ctrl-C ignored, and programs inherit that. Tests
# that interrupt programs must find it as a terminal's shell would have it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Agents that tests start find no container engine unless a test names one: whether the machine has
# one must not decide what is tested.
os.environ.setdefault("NSML_AGENT_ENGINE_SOCKET", "/nonexistent/engine.sock")

MOST_WORKERS = 16
UNIT = Path(__file__).parent / "unit"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Small files come last: a long one would keep one worker at the end while the others idle."""
    items.sort(key=lambda item: item.path.is_relative_to(UNIT))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """What `-n auto` means: three for two processors, as much of the time tests wait for programs."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return min(len(os.sched_getaffinity(0)) * 3 // 2, MOST_WORKERS)


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
