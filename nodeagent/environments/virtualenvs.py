"""Python environments of sessions on nodes without containers: each combination built once a node.

```
<agent data>/environments/<key>/          a virtual environment, at its final path from the start
<agent data>/environments/<key>/ready     written last; its mtime is the last use
```

User code is never executed here, for the agent's rights are not the session's: packages are
installed from wheels only, which run nothing. What pip would have to build (folders, repositories,
source archives) is refused, also where a package requires it. An environment is never the
platform's own and has no pip; it is built with the platform's, under the host's pip configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from nodeagent.environments.builds import Builds, EnvironmentCancelled, EnvironmentFailed, LastWords
from nodeagent.environments.hostconfig import pip_folder, pip_options, without_secrets
from nodeagent.folders import flush_filesystem
from nodeagent.runtimes.interface import PythonEnvironment
from nsml.view.units import counted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from nodeagent.environments.builds import Say
    from nodeagent.environments.requirements import Requirements

_FORMAT = 3
_LOOK_EVERY_S = 0.1
_NOT_FOUND = re.compile(r"No matching distribution found for ([^;]+)")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_MOST_TOLD = 4
_NOTHING_RUNS = """
import ctypes, runpy, sys

ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL

def refuse(event, arguments):
    if event == "subprocess.Popen":
        raise PermissionError("a node does not run code of packages to install them")

sys.addaudithook(refuse)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs pip so that it cannot build: a wheel may require a source archive, which pip would run.

And so that it dies with its agent, whose successor begins anew in the same folder."""


class Environments:
    """The node's environments below `folder`. Blocking; safe from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._builds = Builds(folder)

    def key(self, requirements: Requirements) -> str:
        """Names the environment: the interpreter, where pip looks, and the lines in their order."""
        host = without_secrets(pip_options(os.environ))
        content = [
            *(_FORMAT, platform.python_version(), sys.base_prefix, host),
            *requirements.lines,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def provide(
        self,
        requirements: Requirements,
        say: Say,
        cancelled: threading.Event | None = None,
        *,
        use: Callable[[str], object] = lambda _: None,
    ) -> PythonEnvironment:
        """The environment for `requirements`, built if it is the first time; marks its use.

        `say` gets what is to be seen in the session's log, `use` the key before anybody could
        remove it. Raises EnvironmentFailed with the last lines of that, EnvironmentCancelled soon
        after `cancelled` is set.
        """
        key = self.key(requirements)
        place = self.folder / key
        ready = place / "ready"
        self._builds.provide(
            key,
            is_there=ready.exists,
            build=lambda tell: self._build(place, requirements, tell, cancelled),
            say=say,
            use=lambda: use(key),
            cancelled=cancelled,
        )
        os.utime(ready)
        return PythonEnvironment(folder=place, base_prefix=Path(sys.base_prefix))

    def stored(self) -> dict[str, float]:
        """When each was last used: Unix seconds by key."""
        found = {}
        for ready in self.folder.glob("*/ready"):
            with suppress(FileNotFoundError):
                found[ready.parent.name] = ready.stat().st_mtime
        return found

    def touch(self, key: str) -> None:
        """It is used now."""
        with suppress(FileNotFoundError):
            os.utime(self.folder / key / "ready")

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove one that nobody uses or builds; whether it is gone."""
        place = self.folder / key
        with self._builds.unused(key) as is_free:
            if not is_free or is_used():
                return False
            (place / "ready").unlink(missing_ok=True)
            shutil.rmtree(place)
            self._builds.forget(key)
        return True

    def _build(
        self,
        place: Path,
        requirements: Requirements,
        say: Say,
        cancelled: threading.Event | None,
    ) -> None:
        if place.exists():
            shutil.rmtree(place)
        try:
            venv = [sys.executable, "-I", "-m", "venv", "--without-pip", str(place)]
            _run(venv, say, cancelled)
            if requirements.lines:
                count = counted(len(requirements.lines), "requirement")
                say(f"Installing {count}\n".encode())
                listed = place / "requirements.txt"
                _write_private(listed, "\n".join(requirements.lines) + "\n")
                try:
                    _run(_pip(place, listed), say, cancelled)
                except EnvironmentFailed as error:
                    raise _explained(str(error), cancelled) from None
            # `ready` must not outlive a power loss that the files before it do not.
            flush_filesystem(place)
            _write_private(place / "ready", json.dumps({"lines": list(requirements.lines)}))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def _explained(failure: str, cancelled: threading.Event | None) -> EnvironmentFailed:
    """`failure`, and where pip found no wheel, whether there is source that it would have to build."""
    missing = _NOT_FOUND.search(failure)
    try:
        wanted = Requirement(missing[1].strip()) if missing else None
    except InvalidRequirement:
        wanted = None
    if wanted is None:
        return EnvironmentFailed(failure)
    source = _versions(wanted.name, "--no-binary", cancelled)
    if not any(wanted.specifier.contains(one, prereleases=True) for one in source):
        return EnvironmentFailed(failure)
    wheels = _versions(wanted.name, "--only-binary", cancelled)
    return EnvironmentFailed(
        f"{wanted.name}{wanted.specifier} has no wheel for Python {platform.python_version()} on this"
        " machine, only source, and a node without containers does not run code of packages to build"
        f" them: {_instead(wheels)} a node with containers (--image), which builds them"
    )


def _versions(name: str, which: str, cancelled: threading.Event | None) -> list[str]:
    """The versions that pip finds in its indexes as source or as wheels, newest first; [] for none."""
    said: list[bytes] = []
    asks = [sys.executable, "-m", "pip", "index", "versions", name, which, ":all:"]
    try:
        _run([*asks, "--no-input", "--disable-pip-version-check"], said.append, cancelled)
    except EnvironmentFailed:
        return []
    found = _VERSIONS.search(b"".join(said).decode(errors="replace"))
    return [] if found is None else [one.strip() for one in found[1].split(",")]


def _instead(wheels: list[str]) -> str:
    """What to ask for in place of source: "ask for a version that has wheels (2.1, 2.0), or for"."""
    if not wheels:
        return "no version of it has wheels: ask for"
    told = ", ".join(wheels[:_MOST_TOLD])
    if len(wheels) > _MOST_TOLD:
        told += f" ... {wheels[-1]}"
    return f"ask for a version that has wheels ({told}), or for"


def _write_private(path: Path, text: str) -> None:
    """Write what users other than those of the environment must not read: addresses hold passwords."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _pip(place: Path, listed: Path) -> list[str]:
    """The platform's pip in the interpreter of `place`, as its own `--python` starts it."""
    runner = pip_folder() / "__pip-runner__.py"
    options = "--no-input --no-color --progress-bar off --disable-pip-version-check"
    return [
        *(str(place / "bin" / "python"), "-I", "-c", _NOTHING_RUNS, str(runner)),
        *("install", "--only-binary", ":all:", *options.split(), "-r", str(listed)),
    ]


def _run(command: list[str], say: Say, cancelled: threading.Event | None) -> None:
    """Run `command` and pass its output on; raises EnvironmentFailed when it fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSML_", "PYTHON"))}
    words = LastWords(say)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        cwd="/",
        process_group=0,
    ) as process:
        if process.stdout is None:  # said for the type checker: it is a pipe
            raise EnvironmentFailed("no output")
        try:
            for piece in _pieces(process.stdout.fileno(), cancelled):
                words(piece)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise EnvironmentFailed(words.reason(f"{command[0]} ended with {process.returncode}"))


def _pieces(descriptor: int, cancelled: threading.Event | None) -> Iterator[bytes]:
    """What comes out of a pipe until it is closed, in whole lines as far as there are any."""
    rest = b""
    while True:
        if cancelled is not None and cancelled.is_set():
            raise EnvironmentCancelled
        if not select.select([descriptor], [], [], _LOOK_EVERY_S)[0]:
            continue
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            if rest:
                yield rest
            return
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        if newline:
            yield whole + newline
