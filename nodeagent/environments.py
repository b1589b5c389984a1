"""Python environments of sessions: read what code asks for, build each combination once per node.

```
<agent data>/environments/<key>/          a virtual environment, at its final path from the start
<agent data>/environments/<key>/ready     written last; its mtime is the last use
<agent data>/environments/<key>.lock      held while one builds and others wait
```

User code is never executed here, for the agent's rights are not the session's: `setup.py` is read as
a syntax tree, and packages are installed from wheels only, which run nothing. What pip would have to
build (folders, repositories, source archives) is refused, also where a package requires it. An
environment is never the platform's own and has no pip; it is built with the platform's, under the
host's pip configuration.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import platform
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.folders import flush_filesystem
from nodeagent.runtimes.interface import PythonEnvironment

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

_FORMAT = 1
_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 5
_LOOK_EVERY_S = 0.1
_NOTHING_RUNS = """
import runpy, sys

def refuse(event, arguments):
    if event == "subprocess.Popen":
        raise PermissionError("a node does not run code of packages to install them")

sys.addaudithook(refuse)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs pip so that it cannot build: a wheel may require a source archive, which pip would run."""

_IMAGE = re.compile(r"^#\s*nsml:\s*(\S+)", re.MULTILINE)
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?"
_BY_VERSION = re.compile(rf"{_NAME}\s*\(?\s*(?:(?:[<>=!~]=?=?)[^;@/]*)?\)?\s*(?:;.*)?")
_BY_WHEEL = re.compile(rf"(?:{_NAME}\s*@\s*)?https://[^\s?#]+\.whl(?:#\S*)?\s*(?:;.*)?")
_INDEX_OPTIONS = {"-i", "--index-url", "--extra-index-url", "-f", "--find-links"}
_PLAIN_OPTIONS = {"--pre", "--no-index", "--prefer-binary", "--require-hashes"}


class EnvironmentFailed(Exception):
    """The environment cannot be made; why, on one line, for the session's user."""


class EnvironmentCancelled(Exception):
    """The caller no longer wants the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What a code folder asks for.

    `lines` are pip's, `image` is that of a `#nsml:` line, `notes` say what was found and is not
    honoured, each a sentence for the log.
    """

    lines: Sequence[str] = ()
    image: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)


def read_requirements(code: Path) -> Requirements:
    """Read `setup.py`, then `requirements.txt`, of a code folder. Raises EnvironmentFailed."""
    setup, listed = _text(code / "setup.py"), _text(code / "requirements.txt")
    lines: list[str] = []
    notes: list[str] = []
    if setup is not None:
        lines += [_checked(line, "setup.py") for line in _install_requires(setup, notes)]
    if listed is not None:
        lines += _requirement_lines(code, "requirements.txt", _MAX_DEPTH)
    if (code / "nsml_package.txt").is_file():
        notes.append("nsml_package.txt: system packages are not installed on this node")
    images = (_IMAGE.search(text) for text in (setup, listed) if text is not None)
    image = next((found[1] for found in images if found is not None), None)
    if image is not None:
        notes.append(f"image {image}: this node runs programs without an image")
    return Requirements(lines=tuple(dict.fromkeys(lines)), image=image, notes=tuple(notes))


class Environments:
    """The node's environments below `folder`. Blocking; safe from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def key(self, requirements: Requirements) -> str:
        """Names the environment: the interpreter and the lines, in their order."""
        content = [_FORMAT, platform.python_version(), sys.base_prefix, *requirements.lines]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def provide(
        self,
        requirements: Requirements,
        say: Callable[[bytes], object],
        cancelled: threading.Event | None = None,
    ) -> PythonEnvironment:
        """The environment for `requirements`, built if it is the first time; marks its use.

        `say` gets what is to be seen in the session's log. Raises EnvironmentFailed with the last
        line of that, EnvironmentCancelled soon after `cancelled` is set.
        """
        place = self._folder / self.key(requirements)
        environment = PythonEnvironment(folder=place, base_prefix=Path(sys.base_prefix))
        ready = place / "ready"
        if not ready.exists():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(place.with_name(f"{place.name}.lock"), cancelled):
                if not ready.exists():
                    self._build(place, requirements, say, cancelled)
        os.utime(ready)
        return environment

    def _build(
        self,
        place: Path,
        requirements: Requirements,
        say: Callable[[bytes], object],
        cancelled: threading.Event | None,
    ) -> None:
        if place.exists():
            shutil.rmtree(place)
        try:
            venv = [sys.executable, "-I", "-m", "venv", "--without-pip", str(place)]
            _run(venv, say, cancelled)
            if requirements.lines:
                say(f"Installing {len(requirements.lines)} requirements\n".encode())
                listed = place / "requirements.txt"
                listed.write_text("\n".join(requirements.lines) + "\n", encoding="utf-8")
                _run(_pip(place, listed), say, cancelled)
            # `ready` must not outlive a power loss that the files before it do not.
            flush_filesystem(place)
            (place / "ready").write_text(json.dumps({"lines": list(requirements.lines)}))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def _pip(place: Path, listed: Path) -> list[str]:
    """The platform's pip in the interpreter of `place`, as its own `--python` starts it."""
    found = find_spec("pip")
    if found is None or found.origin is None:
        raise EnvironmentFailed("the agent's own environment has no pip")
    runner = Path(found.origin).with_name("__pip-runner__.py")
    options = "--no-input --no-color --progress-bar off --disable-pip-version-check"
    return [
        *(str(place / "bin" / "python"), "-I", "-c", _NOTHING_RUNS, str(runner)),
        *("install", "--only-binary", ":all:", *options.split(), "-r", str(listed)),
    ]


def _run(
    command: list[str], say: Callable[[bytes], object], cancelled: threading.Event | None
) -> None:
    """Run `command` and pass its output on; raises EnvironmentFailed when it fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSML_", "PYTHON"))}
    last = b""
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
                say(piece)
                last = next((line for line in reversed(piece.splitlines()) if line.strip()), last)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        text = last.decode(errors="replace").strip().removeprefix("ERROR: ")
        raise EnvironmentFailed(text or f"{command[0]} ended with {process.returncode}")


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


@contextmanager
def _locked(path: Path, cancelled: threading.Event | None) -> Iterator[None]:
    """Hold the lock file, waiting for whoever builds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancelled is not None and cancelled.is_set():
                    raise EnvironmentCancelled from None
                time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def _text(path: Path) -> str | None:
    """The text of a file of the code folder; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentFailed(f"{path.name} cannot be read: {error.strerror}") from None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise EnvironmentFailed(f"{path.name} is over {_MAX_FILE_BYTES} bytes")
    return content.decode("utf-8", errors="replace")


def _install_requires(setup: str, notes: list[str]) -> list[str]:
    """What `setup(install_requires=...)` lists, as far as it is written out in the file."""
    try:
        tree = ast.parse(setup)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        notes.append(f"setup.py is not Python that can be read ({error}): it is left out")
        return []
    names = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node.func) != "setup":
            continue
        for keyword in node.keywords:
            if keyword.arg == "install_requires":
                return _strings(keyword.value, names, notes)
    return []


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _strings(value: ast.expr, names: dict[str, ast.expr], notes: list[str]) -> list[str]:
    if isinstance(value, ast.Name):
        value = names.get(value.id, value)
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        notes.append("setup.py computes its install_requires: it is left out")
        return []
    if isinstance(found, str):
        return found.split("\n")
    if isinstance(found, list | tuple) and all(isinstance(line, str) for line in found):
        return [line for line in found if line.strip()]
    notes.append("setup.py: install_requires is no list of strings: it is left out")
    return []


def _requirement_lines(code: Path, name: str, depth: int) -> list[str]:
    """The lines of a requirements file, those of files that it includes in their place."""
    if depth == 0:
        raise EnvironmentFailed(f"{name}: files include one another too deeply")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise EnvironmentFailed(f"{name}: is outside of the code's folder")
    text = _text(code / name)
    if text is None:
        raise EnvironmentFailed(f"{name}: there is no such file")
    lines: list[str] = []
    for raw in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        included = re.fullmatch(r"(?:-r|--requirement)[\s=]\s*(\S+)", line)
        if included:
            lines += _requirement_lines(code, included[1], depth - 1)
        elif line:
            lines.append(_checked(line, name))
    return lines


def _checked(line: str, file: str) -> str:
    """`line`, when it asks for wheels from an index; else raises EnvironmentFailed."""
    line = line.strip()
    if len(line.splitlines()) > 1 or "${" in line:
        # pip would read the second line as an option, and send variables of the agent to an index
        raise EnvironmentFailed(f"{file}: {line!r} has a line break or names a variable")
    requirement = re.sub(r"\s--hash[= ]\S+", "", line).strip()
    if _BY_VERSION.fullmatch(requirement) or _BY_WHEEL.fullmatch(requirement):
        return line
    try:
        option, *values = shlex.split(line.replace("=", " ", 1) if line.startswith("--") else line)
    except ValueError:
        option, values = "", []
    if option in _PLAIN_OPTIONS and not values:
        return line
    if option in _INDEX_OPTIONS and len(values) == 1 and values[0].startswith(("https:", "http:")):
        return line
    raise EnvironmentFailed(
        f"{file}: {line!r} is not installed here: only wheels, by name and version or by https URL,"
        " because a node does not run code of packages to install them"
    )
