"""The containers of one build of an image, under its limits: bytes, memory, time."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.engine.client import EngineError
from nodeagent.engine.images import put_archive, run_build, written_bytes
from nodeagent.environments.builds import LastWords, WithoutPlaces
from nodeagent.environments.errors import DefaultsUnfit, EnvironmentFailed
from nodeagent.environments.image_settings import NO_NETWORK
from nodeagent.environments.recipe import UNFIT
from nodeagent.storage.eviction import NoRoom
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import BuildContainer, StoredImage
    from nodeagent.environments.build_queue import Turn
    from nodeagent.environments.builds import Say
    from nodeagent.environments.image_settings import ImageSettings
    from nodeagent.environments.recipe import LockTaken

_MEASURE_EVERY_S = 2.0
_MEASURE_SHARE = 0.1
"""Maximum share of an engine's time for measuring one build."""
_UNREACHED = (
    "No matching distribution",
    "client error",
    "dns error",
    "Temporary failure",
    "Unable to locate",
    "resolve",
    "connection",
)


class BuildRun:
    """The containers of one build, one after the other, within its turn and the time of builds."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        key: str,
        turn: Turn,
        *,
        settings: ImageSettings,
        say: Say,
        look: Callable[[], object],
    ) -> None:
        self._engine = engine
        self.key, self.turn = key, turn
        self._settings = settings
        self._say = say
        self._look = look
        self._ends_at = time.monotonic() + settings.time_limit_s
        self.written = Written(engine, container, turn)

    def look(self) -> None:
        """Raise if it must end."""
        self._look()
        self.written.look()
        if time.monotonic() > self._ends_at:
            limit = self._settings.time_limit_s
            raise EnvironmentFailed(f"the build took longer than {limit:g} s")

    def to_end(
        self,
        container: BuildContainer,
        base: StoredImage,
        *,
        keep: Callable[[str], object],
        fill: Callable[[str], object] = lambda _: None,
        hear: Callable[[Say], LockTaken] | None = None,
    ) -> None:
        """Run one on `base`, and `keep` it if it succeeds. Raises EnvironmentFailed, EngineError.

        `hear` makes a filter of its output, which writes to the given consumer.
        """
        words = LastWords(self._say)
        said = WithoutPlaces(words)
        heard = said if hear is None else hear(said)
        code, is_out_of_memory = run_build(
            self._engine, container, base, say=heard, look=self.look, keep=keep, fill=fill
        )
        heard.end()
        said.end()
        settings, turn = self._settings, self.turn
        if is_out_of_memory:
            is_own = turn.memory_bytes == settings.memory_bytes
            setting = "build_memory_bytes" if is_own else "builds_memory_bytes"
            raise EnvironmentFailed(
                f"the build needs more than {size_text(turn.memory_bytes)} of memory ({setting} in the"
                " agent's settings)"
            )
        if code:
            reason = words.reason(f"the build ended with {code}")
            failure = DefaultsUnfit if code == UNFIT else EnvironmentFailed
            raise failure(reason + _hint(reason, settings.network))

    def put(self, container: str, folder: str, pieces: Iterable[bytes]) -> None:
        """Unpack an archive in a container that is not started yet."""
        put_archive(self._engine, container, folder, self._counted(pieces), self.look)

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        count = 0
        for piece in pieces:
            count += len(piece)
            self.written.refuse(count)
            yield piece


class Written:
    """Limits the bytes that a build writes to its turn's, as measured by the engine, which walks all files."""

    def __init__(self, engine: Engine, container: str, turn: Turn) -> None:
        self._engine = engine
        self._container = container
        self._turn = turn
        self._next_at = time.monotonic() + _MEASURE_EVERY_S
        self._before = self._last = 0

    def next_step(self) -> None:
        """Keep the count so far: another container follows."""
        self._before += self._last
        self._last = 0

    def look(self) -> None:
        """Measure if it is time to. Raises EnvironmentFailed or NoRoom over the limit."""
        if time.monotonic() < self._next_at:
            return
        began = time.monotonic()
        # other limits are checked even if the engine does not answer
        with suppress(EngineError):
            self.check()
        ended = time.monotonic()
        self._next_at = ended + max(_MEASURE_EVERY_S, (ended - began) / _MEASURE_SHARE)

    def check(self) -> None:
        """Measure. Raises EnvironmentFailed or NoRoom over the limit, EngineError."""
        self._last = written_bytes(self._engine, self._container)
        self.refuse(self._last)

    def refuse(self, here: int) -> None:
        """Update the container's bytes to `here`. Raises EnvironmentFailed or NoRoom over the limit."""
        turn, found = self._turn, self._before + here
        turn.written_bytes = found
        if found <= turn.disk_bytes:
            return
        words = f"the build wrote {size_text(found)}: at most {size_text(turn.disk_bytes)}"
        if turn.is_disk_short:
            raise NoRoom(f"{words}, its share of the disk space left for builds")
        raise EnvironmentFailed(f"{words} on this node (build_disk_bytes in the agent's settings)")


def _hint(reason: str, network: str) -> str:
    """Advice if a package needed a network, or a compiler that the image lacks; else ""."""
    if network == NO_NETWORK and any(sign in reason for sign in _UNREACHED):
        return (
            " (builds have no network on this node, whose engine has none that keeps them apart: its"
            " administrator sets build_network)"
        )
    signs = ("gcc", "g++", "cc'", "compiler", "Python.h", "CMake")
    if any(sign in reason for sign in signs):
        return " (a compiler: name build-essential and python3-dev in nsml_package.txt)"
    return ""
