"""Viewers of sessions, as child processes of the control plane."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import structlog

from controlplane.domain.errors import StateConflict
from controlplane.gateway.optional_packages import shows_dashboards
from controlplane.views.views import Kind

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping

    from controlplane.views.views import Viewer, ViewerSpec

START_WITHIN_S: Final = 25.0
"""Together with the next one less than clients' timeout."""
CHECK_WITHIN_S: Final = 4.0
STOP_WITHIN_S: Final = 2.0
_PROGRAM: Final = "controlplane.views.viewing"
_PROGRAMS: Final = {Kind.DASHBOARD: "tui.web.view"}
"""Programs that are not boards, known only by name; all other kinds run `_PROGRAM`."""
_MOST_WORDS: Final = 4_000
_TITLES: Final = {
    Kind.TENSORBOARD: "TensorBoard",
    Kind.VISDOM: "Visdom",
    Kind.DASHBOARD: "the dashboard",
}

LAUNCHER: Final = Path(__file__).with_name("visdom_launcher.py")
VISDOM: Final = "0.3.0"
"""The version with known paths, whose page receives polled messages in order."""
_ASKED_BY_PAGE: Final = re.compile(r"/(?:socket_wrap|env/[^/]+|compare/[^/]+)")
_PAGE: Final = re.compile(r"/|/(?:env|compare)/[^/]+|/static/.+|/user/style\.css")

_log = structlog.get_logger()


class Viewers:
    """Starts TensorBoard, Visdom and the dashboard; see `views.Viewing`.

    Args:
        url: address of our HTTP routes for browsers.
        server: address of the control plane without TLS, for programs on this machine.
        visdom_python: interpreter of the environment with visdom; None: there is none.
    """

    def __init__(self, *, url: str, server: str, visdom_python: Path | None = None) -> None:
        self.url = url
        self._server = server
        self._visdom_python = visdom_python

    async def start(self, spec: ViewerSpec) -> Viewer:
        """See Viewing."""
        order: dict[str, object] = {
            "kind": spec.kind.value,
            "prefix": spec.prefix,
            "token": spec.token,
            "sessions": list(spec.session_ids),
            "server": self._server,
        }
        if spec.kind is Kind.VISDOM:
            order |= {"python": await self._sound_visdom(), "launcher": str(LAUNCHER)}
        elif spec.kind is Kind.DASHBOARD:
            _check_dashboard()
            order |= {"platform": urlsplit(self.url).netloc}
        elif importlib.util.find_spec("tensorboard") is None:
            raise StateConflict(
                "TensorBoard is not installed where the control plane runs",
                attempt="there: pip install 'nsml[tensorboard]', or nsml plot SESSION --tensorboard DIR "
                "for one of your own",
            )
        if not self._server:
            raise StateConflict(
                "this control plane has no listener for programs of its own machine",
                attempt="socket or address in its settings",
            )
        folder = Path(tempfile.mkdtemp(prefix="nsml-view-"))
        try:
            return await _Child.started(folder, spec.kind, order)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def _sound_visdom(self) -> str:
        """Return the interpreter with a usable visdom; raises StateConflict."""
        if self._visdom_python is None:
            raise StateConflict(
                "no visdom is set up where the control plane runs",
                why="it needs an environment of its own there, named by visdom_python in the settings",
                attempt="docs/results.md has the steps; nsml tensorboard needs none of this",
            )
        python = str(self._visdom_python)
        if problem := what_is_wrong(python, await _found_by(python)):
            raise problem
        return python


def _check_dashboard() -> None:
    if not shows_dashboards():
        raise StateConflict(
            "what shows the dashboard in a browser is not installed where the control plane runs",
            attempt="there: pip install 'nsml[web]'; or nsml-tui, in a terminal",
        )


async def _found_by(python: str) -> Mapping[str, Any] | str:
    """Return the launcher's report on an interpreter's environment, or why there is none."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(python, "-I", str(LAUNCHER), "--check"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_own_environment(),
        )
    except OSError as error:
        return error.strerror or str(error)
    try:
        async with asyncio.timeout(CHECK_WITHIN_S):
            said, _ = await process.communicate()
        found = json.loads(said)
    except TimeoutError:
        return "it says nothing"
    except ValueError:
        return "it is no Python 3.12 or newer"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return found if isinstance(found, dict) else "it is no Python 3.12 or newer"


def what_is_wrong(python: str, found: Mapping[str, Any] | str) -> StateConflict | None:
    """Return why visdom cannot be shown by an interpreter with this report; None if it can."""
    if isinstance(found, str):
        return StateConflict(
            f"{python} cannot be run where the control plane runs",
            why=found,
            attempt="visdom_python in its settings, see docs/results.md",
        )
    install = f"there: {python} -m pip install 'visdom=={VISDOM}' 'tornado<6.6'"
    if not found["visdom"]:
        return StateConflict(f"visdom is not installed beside {python}", attempt=install)
    if found["visdom"] != VISDOM:
        return StateConflict(
            f"visdom {found['visdom']} is installed beside {python}",
            why=f"views are shown by {VISDOM}: of others it is not known what a browser may ask them for",
            attempt=install,
        )
    if _numbers(found["tornado"]) >= (6, 6):
        return StateConflict(
            f"tornado {found['tornado']} is installed beside {python}",
            why=f"visdom {VISDOM} cannot show its page with 6.6 or newer",
            attempt=install,
        )
    if found["missing"]:
        return StateConflict(
            f"scripts of visdom's page are missing beside {python}",
            why=", ".join(found["missing"]),
            attempt=f"there, once, with the internet: {python} -m visdom.server, until it says where it is",
        )
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _own_environment() -> dict[str, str]:
    """Return a minimal environment: ours may have secrets."""
    return {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}


def _allows_looking(method: str, path: str) -> bool:
    """Return whether visdom's page needs it for display: other paths close, change and add windows."""
    if method == "POST":
        return _ASKED_BY_PAGE.fullmatch(path) is not None
    return _PAGE.fullmatch(path) is not None or path == "/socket_wrap"


class _Child:
    """A viewer process. It ends when its stdin closes, so it cannot outlive its parent."""

    def __init__(self, process: Process, folder: Path, kind: Kind) -> None:
        self._process = process
        self._folder = folder
        self._kind = kind

    @classmethod
    async def started(cls, folder: Path, kind: Kind, order: dict[str, object]) -> Self:
        """Start it, and wait until it answers."""
        errors = folder / "log"
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                _PROGRAMS.get(kind, _PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=folder,
                # So that our terminal's Ctrl-C does not reach it.
                env={**_own_environment(), "HOME": str(folder), "TMPDIR": str(folder)},
                start_new_session=True,
            )
        child = cls(process, folder, kind)
        is_ready = False
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(START_WITHIN_S):
                    is_ready = await child.begun({**order, "folder": str(folder)})
            if not is_ready:
                said = errors.read_text(encoding="utf-8", errors="replace")
        except BaseException:
            await child.stop()
            raise
        if not is_ready:
            await child.stop()
            raise _not_started(kind, said[-_MOST_WORDS:])
        return child

    async def begun(self, order: dict[str, object]) -> bool:
        """Send it its order; return whether it reports that it is ready."""
        assert self._process.stdin is not None  # noqa: S101 - asked for when it was started
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._process.stdout.readline() == b"ready\n"

    @property
    def socket(self) -> str:
        """See Viewer."""
        return str(self._folder / "http")

    @property
    def has_ended(self) -> bool:
        """See Viewer."""
        return self._process.returncode is not None

    def allows(self, method: str, path: str) -> bool:
        """See Viewer."""
        match self._kind:
            case Kind.DASHBOARD:
                return (method, path) == ("WEBSOCKET", "/ws") or method in {"GET", "HEAD"}
            case Kind.VISDOM:
                return method != "WEBSOCKET" and _allows_looking(method, path)
            case Kind.TENSORBOARD:
                return method != "WEBSOCKET"

    async def stop(self) -> None:
        """See Viewer."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            # Its child processes are in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _not_started(kind: Kind, said: str) -> StateConflict:
    _log.warning("viewer.not_started", kind=kind, said=said)
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    return StateConflict(f"{_TITLES[kind]} did not start", why=last[:300])
