"""Command lines of tests that only look, run in the test's own process.

A test that waits for a condition looks at it again and again. Each look as a program of its own takes a
third of a second of a processor, most of it for starting Python; in this process it takes a hundredth.
What changes something, follows, or asks runs as the real program.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import bench.platform
from cli.app import App
from cli.exits import ExitCode
from cli.main import run
from nsml.client.errors import Unavailable

LOOKING = {
    ("ps",), ("logs",), ("status",), ("events",), ("eventlen",), ("getid",), ("queue",), ("gpustat",),
    ("model", "ls"), ("node", "ls"), ("node", "show"), ("dataset", "ls"), ("project", "show"),
    ("board", "ls"), ("board", "show"), ("board", "info"), ("submission", "ls"), ("submission", "info"),
    ("dataset", "board"), ("competition", "ls"), ("competition", "show"), ("competition", "standings"),
    ("competition", "phases"),
}  # fmt: skip
STAYING = {"-f", "--follow", "-w", "--watch"}

# As the program does: gRPC's own diagnostics would go to standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def only_looks(arguments: Sequence[str]) -> bool:
    """Whether a command line reads and ends; and whether this thread can run it."""
    is_known = any(tuple(arguments[: len(words)]) == words for words in LOOKING)
    return is_known and not STAYING.intersection(arguments) and _is_free()


def _is_free() -> bool:
    """The command line redirects standard output and runs a loop: one at a time, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


class _LookingApp(App):
    """A command line that notes whether the platform was reached."""

    is_reached = False

    def explain(self, error: Unavailable) -> Unavailable:
        """See App."""
        is_late = error.reason == "DEADLINE_EXCEEDED"
        self.is_reached = is_late or error.retry_after_s is not None
        return super().explain(error)


def look(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str] | None:
    """Run `nsml ARGUMENTS` here; what the program would have written, and its exit code.

    None: the platform was not reached, and a program has to ask. gRPC holds an address that was away
    back for all channels of a process, and what was away may be there again.
    """
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", "") for _ in range(3)]
    stdin, stdout, stderr = streams
    app = _LookingApp(environ=environment, stdin=stdin, stdout=stdout, stderr=stderr)
    code = run(list(arguments), app)
    if code == ExitCode.UNAVAILABLE and not app.is_reached:
        return None  # what was reached has been waited for: a program would wait as long again
    written = []
    for stream in (stdout, stderr):
        stream.flush()
        written.append(stream.buffer.getvalue().decode("utf-8", "surrogateescape"))
    return subprocess.CompletedProcess(["nsml", *arguments], int(code), *written)


class Platform(bench.platform.Platform):
    """A platform whose state is cheap to look at."""

    def _run(
        self,
        arguments: Sequence[str],
        *,
        stdin: str | None,
        environment: dict[str, str],
        by: Sequence[str],
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        is_here = stdin is None and not by and only_looks(arguments)
        return (look(arguments, environment) if is_here else None) or super()._run(
            arguments, stdin=stdin, environment=environment, by=by, **options
        )
