"""Reads users' requirement files that need a parser, in a sandbox: the agent itself parses none."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.sandbox import Task, base_python, shared_copy
from nodeagent.runtimes.interface import Mount
from nsml.packages import conda_reader, project_reader, setup_reader
from nsml.packages.conda_reader import CondaFile
from nsml.packages.project_reader import Listed
from nsml.packages.requirements import Readers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from nodeagent.environments.build_queue import Waits
    from nodeagent.environments.sandbox import Sandbox

_MOST_KEPT = 1_000
_MOST_KEPT_BYTES = 10_000
_MOST_SAID_BYTES = 8 << 20
_NAMES = {"project": "pyproject.toml", "lock": "uv.lock", "script": "the script block"}


class _Asker(NamedTuple):
    """The requester of a reading."""

    owner: str
    waits: Waits
    cancelled: threading.Event | None


class Setups:
    """Reads `setup.py`, projects, locks, scripts and conda files; results are cached by content. Blocking; thread-safe."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._turn = threading.Lock()

    def reader(
        self,
        *,
        owner: str,
        waits: Waits = lambda _: None,
        cancelled: threading.Event | None = None,
    ) -> Readers:
        """Readers of a user's files; `waits` receives why one waits. They raise as `Sandbox.ask`."""
        who = _Asker(owner, waits, cancelled)
        return Readers(
            setup=partial(self._read_setup, who),
            project=partial(self._read_project, who),
            conda=partial(self._read_conda, who),
        )

    def _read_setup(self, who: _Asker, text: str) -> tuple[list[str], list[str]]:
        """The lines that a `setup.py` lists, and notes."""
        if "install_requires" not in text:
            return [], []  # most list nothing
        lines, notes = _texts(self._told(who, "setup.py", setup_reader, (), (text,)), "setup.py", 2)
        return lines, notes

    def _read_project(self, who: _Asker, kind: str, *texts: str) -> Listed:
        """See `project_reader.read`."""
        name = _NAMES.get(kind, kind)
        said = self._told(who, name, project_reader, (kind,), texts)
        try:
            lines, notes, python, refused = json.loads(said)
            if all(isinstance(one, str) for one in (*lines, *notes, python, refused)):
                return Listed(tuple(lines), tuple(notes), python, refused)
        except (ValueError, TypeError, RecursionError):
            pass
        raise _cannot_be_read(name)

    def _read_conda(self, who: _Asker, text: str) -> CondaFile:
        """See `conda_reader.read`."""
        name = "the file of conda"
        said = self._told(who, name, conda_reader, (), (text,))
        try:
            *lists, refused = json.loads(said)
            if all(
                isinstance(one, str) for one in (*(one for some in lists for one in some), refused)
            ):
                channels, specs, pip, notes = map(tuple, lists)
                return CondaFile(channels, specs, pip, notes, refused)
        except (ValueError, TypeError, RecursionError):
            pass
        raise _cannot_be_read(name)

    def _told(
        self,
        who: _Asker,
        name: str,
        reader: ModuleType,
        words: tuple[str, ...],
        texts: Sequence[str],
    ) -> bytes:
        """The output of `reader` for texts, cached by these."""
        content = json.dumps([*words, *texts]).encode()
        digest = hashlib.sha256(f"{reader.__name__} ".encode() + content).hexdigest()
        with self._turn:
            said = self._kept.get(digest)
        if said is None:
            said = self._ask(who, name, reader, words, texts)
            with self._turn:
                if len(said) <= _MOST_KEPT_BYTES:
                    self._kept[digest] = said
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return said

    def _ask(
        self,
        who: _Asker,
        name: str,
        reader: ModuleType,
        words: tuple[str, ...],
        texts: Sequence[str],
    ) -> bytes:
        program = shared_copy(
            self._sandbox.folder,
            reader.__name__.rpartition(".")[2],
            {"reader.py": Path(str(reader.__file__))},
        )
        files = {
            f"file-{number}": text.encode("utf-8", errors="replace")
            for number, text in enumerate(texts)
        }
        task = Task(
            argv=[
                *(str(base_python()), "-I", str(program / "reader.py")),
                *(*words, *(f"{{run}}/{file}" for file in files)),
            ],
            mounts=[Mount(source=program, target=str(program))],
            files=files,
        )
        try:
            return self._sandbox.ask(
                task,
                most=_MOST_SAID_BYTES,
                owner=who.owner,
                waits=who.waits,
                cancelled=who.cancelled,
            )
        except EnvironmentFailed as error:
            raise EnvironmentFailed(
                f"the requirements in {name} cannot be read ({error}): list them in requirements.txt"
            ) from None


def _texts(said: bytes, name: str, count: int) -> list[list[str]]:
    """A reader's untrusted output, checked: lists of texts."""
    try:
        lists = json.loads(said)
        if len(lists) == count and all(isinstance(one, str) for some in lists for one in some):
            return [list(some) for some in lists]
    except (ValueError, TypeError, RecursionError):
        pass
    raise _cannot_be_read(name)


def _cannot_be_read(name: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"the requirements in {name} cannot be read")
