"""What `setup.py` files require, read in a sandbox: the agent itself parses none."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.sandbox import Task, base_python, shared_copy
from nodeagent.runtimes.interface import Mount
from nsml.packages import setup_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.environments.build_queue import Waits
    from nodeagent.environments.sandbox import Sandbox
    from nsml.packages.requirements import ReadSetup

_MOST_KEPT = 1_000
_MOST_KEPT_BYTES = 10_000
_MOST_SAID_BYTES = 1 << 20


class Setups:
    """Reads files of users; what one lists is kept by its content. Blocking; safe from several threads."""

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
    ) -> ReadSetup:
        """Reads files of a user; `waits` is told why that waits. What it returns raises as `Sandbox.ask`."""
        return partial(self._read, partial(self._ask, owner, waits, cancelled))

    def _read(self, ask: Callable[[str], bytes], text: str) -> tuple[list[str], list[str]]:
        """The lines that a `setup.py` lists, and notes."""
        if "install_requires" not in text:
            return [], []  # most say nothing
        digest = hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()
        with self._turn:
            said = self._kept.get(digest)
        if said is None:
            said = ask(text)
            with self._turn:
                if len(said) <= _MOST_KEPT_BYTES:
                    self._kept[digest] = said
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return _lists(said)

    def _ask(self, owner: str, waits: Waits, cancelled: threading.Event | None, text: str) -> bytes:
        program = shared_copy(
            self._sandbox.folder, "setup", {"reader.py": Path(setup_reader.__file__)}
        )
        task = Task(
            argv=[str(base_python()), "-I", str(program / "reader.py"), "{run}/setup.py"],
            mounts=[Mount(source=program, target=str(program))],
            files={"setup.py": text.encode("utf-8", errors="replace")},
        )
        try:
            return self._sandbox.ask(
                task, most=_MOST_SAID_BYTES, owner=owner, waits=waits, cancelled=cancelled
            )
        except EnvironmentFailed as error:
            raise EnvironmentFailed(
                f"the requirements in setup.py cannot be read ({error}): list them in requirements.txt"
            ) from None


def _lists(said: bytes) -> tuple[list[str], list[str]]:
    """What the reader said, which is not believed."""
    try:
        lines, notes = json.loads(said)
        if all(isinstance(one, str) for one in [*lines, *notes]):
            return list(lines), list(notes)
    except (ValueError, TypeError, RecursionError):
        pass
    raise EnvironmentFailed("the requirements in setup.py cannot be read")
