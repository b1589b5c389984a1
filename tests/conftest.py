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
