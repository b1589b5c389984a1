"""One control plane's way to the history and to the object store, which can be late, fail or be gone.

Both live elsewhere, as PostgreSQL and S3 do: what was sent may be applied whatever becomes of its
sender, and whoever hears of a failure does not know whether it was.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tests.simulation.points import Points

_WRITES = frozenset(
    {
        "append",
        "archive",
        "put_session",
        "replace_session",
        "delete_session",
        "put_checkpoint",
        "delete_checkpoint",
        "note_lock",
        "share_lock",
        "lose_checkpoints",
        "tell",
        "settle",
        "charge",
        "audit",
        "trim_audit",
        "mark",
        "probe",
        "put",
        "put_many",
        "create",
        "add",
        "update",
        "change",
        "change_score",
        "begin_evaluation",
        "show_evaluation",
        "delete",
    }
)


class Witness(Protocol):
    """Sees what the history and the object store took, at the instant that they did."""

    def recorded(self, member: str, what: str, given: tuple[Any, ...], result: Any) -> None:
        """`what` is the name of the method that returned `result` when `given` these."""
        ...


@dataclass
class Trouble:
    """What is wrong with a place where data is kept; shared by all who use it.

    Attributes:
        is_gone: every call fails.
        failing: so large a share of the calls fails, half of them after they were applied.
        slow_s: a call takes up to so long.
        hurt: how many calls failed or waited so far.
    """

    is_gone: bool = False
    failing: float = 0.0
    slow_s: float = 0.0
    hurt: int = 0


@dataclass(frozen=True, kw_only=True)
class Way:
    """How calls of one process get there."""

    member: str
    rng: random.Random
    points: Points
    witness: Witness
    trouble: Trouble
    error: type[Exception]
    name: str

    async def go(self, what: str, work: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """Do `work`, or not, or do it and tell nobody."""
        trouble = self.trouble
        if what in _WRITES:
            await self.points.passing(f"{self.name} {what} before")
        if trouble.slow_s:
            trouble.hurt += 1
            await asyncio.sleep(self.rng.uniform(0.0, trouble.slow_s))
        if trouble.is_gone:
            trouble.hurt += 1
            await asyncio.sleep(0.01)
            raise self.error(f"{self.name} does not answer")
        fails = bool(trouble.failing) and self.rng.random() < trouble.failing
        trouble.hurt += fails
        if fails and self.rng.random() < 0.5:
            raise self.error(f"{self.name} failed")
        result = await work()
        if what in _WRITES:
            self.witness.recorded(self.member, what, given, result)
            await self.points.passing(f"{self.name} {what} after")
        if fails:
            raise self.error(f"{self.name} broke before the answer")
        return result


class _Part:
    """A part of the history, or the object store, at the end of a way."""

    def __init__(self, part: Any, way: Way) -> None:
        self._part = part
        self._way = way

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*given: Any, **named: Any) -> Any:
            return await self._way.go(name, partial(method, *given, **named), *given)

        self.__dict__[name] = call
        return call


class HistoryLink:
    """A `History` over a way: all its parts, but telemetry, which each process keeps for itself."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the history has no {name}")

    def __init__(self, history: Any, way: Way) -> None:
        for name, part in vars(history).items():
            if not name.startswith("_"):
                setattr(self, name, part if name == "telemetry" else _Part(part, way))
        self._whole = _Part(history, way)

    async def mark(self, fresh: str = "") -> str:
        """See History."""
        return str(await self._whole.mark(fresh))

    async def update_property(self, name: str, change: Callable[[str], str]) -> str:
        """See History."""
        return str(await self._whole.update_property(name, change))

    async def probe(self) -> None:
        """See History."""
        await self._whole.probe()

    async def size(self) -> int:
        """See History."""
        return int(await self._whole.size())

    async def close(self) -> None:
        """It is not ours."""


def objects_link(objects: Any, way: Way) -> Any:
    """An `ObjectStore` over a way."""
    return _Part(objects, way)
