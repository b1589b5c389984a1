"""Work started by users' orders: limited, polled by clients, cancelled when they stop asking.

Nothing of it is stored: after a restart it begins anew on request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

import structlog

from nodeagent.engine.client import EngineError
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.machine.accounts import AccountsError
from nodeagent.storage.transfer import uninterrupted
from nsml.common.concurrency import BackgroundTasks
from nsml.common.units import counted
from nsml.packages.requirements import RequirementsRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsml.common.clock import Clock, Offload

_LOOK_EVERY_S: Final = 1.0
_MOST_REMEMBERED: Final = 64
"""Finished works kept for queries."""
FAILURES: Final = (AccountsError, EngineError, EnvironmentFailed, RequirementsRefused, OSError)
"""Errors with messages for users."""
AGENT_FAILED: Final = "the agent failed; its log says more"

R = TypeVar("R")
W = TypeVar("W", bound="Work[Any]")

log = structlog.get_logger()


@dataclass(slots=True, eq=False, kw_only=True)
class Work(Generic[R]):
    """One piece of work for one user; `result` is None while it runs, `asked_at` is its client's last query."""

    asked_at: float
    cancelled: threading.Event = field(default_factory=threading.Event)
    result: R | None = None


class ClientWork(Generic[W]):
    """The work of one kind, by user and name. A context manager: leaving it cancels all.

    Args:
        does: the verb and the noun of refusals, for example "pulls" and "image".
        most: the limits of concurrent work: on the node, and of one user.
        abandoned_after_s: work without a query of its client for this time is cancelled.
    """

    def __init__(
        self,
        does: tuple[str, str],
        *,
        most: tuple[int, int],
        abandoned_after_s: float,
        clock: Clock,
        run_long: Offload,
    ) -> None:
        self._verb, self._noun = does
        self._most, self._most_of_one = most
        self._abandoned_after_s = abandoned_after_s
        self._clock = clock
        self._run_long = run_long
        self._works: OrderedDict[tuple[str, str], W] = OrderedDict()
        self._group = BackgroundTasks()

    async def __aenter__(self) -> Self:
        """Start."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Cancel all."""
        await self._group.__aexit__(None, None, None)

    def find(self, owner: str, name: str) -> W | None:
        """Return a user's work of that name, and record the query of its client."""
        work = self._works.get((owner, name))
        if work is not None:
            work.asked_at = self._clock.monotonic()
        return work

    def refusal(self, owner: str) -> str:
        """Return why this user can start no more work now, or ""."""
        running = [of for (of, _), one in self._works.items() if one.result is None]
        own = running.count(owner)
        if own >= self._most_of_one:
            count = f"{counted(own, self._noun)} of yours"
        elif len(running) >= self._most:
            count = counted(len(running), self._noun)
        else:
            return ""
        return f"the node {self._verb} {count} already: try again when one has ended"

    def start(
        self,
        owner: str,
        name: str,
        work: W,
        call: Callable[[], object],
        *,
        failed: Callable[[str], object],
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """Start work: `call`, which blocks and ends soon after `work.cancelled` is set, returns its result.

        `failed` makes a result from an error message. `ended` is called once there is a result.
        """
        self._works[owner, name] = work
        self._works.move_to_end((owner, name))
        for key in [key for key, one in self._works.items() if one.result is not None]:
            if len(self._works) > _MOST_REMEMBERED:
                del self._works[key]
        self._group.create_task(self._run(work, call, failed, ended))

    def now(self) -> float:
        """Return the time for `asked_at`."""
        return self._clock.monotonic()

    async def _run(
        self,
        work: W,
        call: Callable[[], object],
        failed: Callable[[str], object],
        ended: Callable[[], object],
    ) -> None:
        watching = asyncio.ensure_future(self._cancel_abandoned(work))
        try:
            work.result = await uninterrupted(self._run_long, call, cancel=work.cancelled.set)
        except EnvironmentCancelled:
            work.result = failed("it was cancelled, or no client was waiting")
        except FAILURES as error:
            work.result = failed(reason_of(error))
        except Exception:
            log.exception("client_work.failed", kind=f"{self._verb} {self._noun}")
            work.result = failed(AGENT_FAILED)
        finally:
            watching.cancel()
        ended()

    async def _cancel_abandoned(self, work: W) -> None:
        while self._clock.monotonic() < work.asked_at + self._abandoned_after_s:
            await self._clock.sleep(_LOOK_EVERY_S)
        work.cancelled.set()


def reason_of(error: Exception) -> str:
    """Return the message of one of FAILURES."""
    return getattr(error, "strerror", None) or str(error)
