"""Retries while the platform reports a temporary failure of a part."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final, Protocol, TypeVar

from nsml.client.errors import StillWorking, Unavailable
from nsml.common.text import visible
from nsml.common.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsml.common.clock import Clock

T = TypeVar("T")

DEFAULT_S: Final = 120.0
CALL_S: Final = 30.0
"""For a call that only reads, or stops something, in seconds."""
_LEAST_S: Final = 0.1


class Console(Protocol):
    """Output of retry messages: `cli.app.App`."""

    @property
    def clock(self) -> Clock:
        """Measures and sleeps."""
        ...

    @property
    def stderr(self) -> IO[str]:
        """For messages beside the result."""
        ...

    @property
    def has_live_progress(self) -> bool:
        """Whether a line is redrawn in place."""
        ...

    @property
    def is_quiet(self) -> bool:
        """Whether only results and errors are printed."""
        ...

    def say(self, text: str) -> None:
        """Write a line beside the result."""
        ...


async def patiently(
    console: Console, attempt: Callable[[], Awaitable[T]], *, patience_s: float
) -> T:
    """Return the result of `attempt`, retried for `patience_s` seconds while the platform reports when to retry.

    Each retry has to be safe after a lost answer. If nothing answers at all there are no
    retries: the failure may be permanent.

    Raises:
        Unavailable: it still fails after that time.
    """
    patience = Patience(console, patience_s)
    try:
        while True:
            try:
                return await attempt()
            except Unavailable as error:
                await patience.wait(error)
    finally:
        patience.close()


class Patience:
    """The retry time, and the reason for waiting: on a terminal a countdown on one line, else a line per reason."""

    def __init__(self, console: Console, patience_s: float = CALL_S) -> None:
        self._console = console
        self._began = console.clock.monotonic()
        self._until = self._began + patience_s
        self._said = ""
        self._is_drawn = False

    async def wait(self, error: Unavailable) -> None:
        """Wait as long as the platform asked; raises the error if it did not ask, or the time is over.

        There is no limit while the platform works for the call.
        """
        if isinstance(error, StillWorking):
            await self._wait_for_work(error)
            return
        left_s = self._until - self._console.clock.monotonic()
        if error.retry_after_s is None or left_s <= 0:
            raise error
        self._tell(visible(error.message), left_s)
        await self._console.clock.sleep(max(min(error.retry_after_s, left_s), _LEAST_S))

    async def _wait_for_work(self, error: StillWorking) -> None:
        now = self._console.clock.monotonic()
        reason, span = visible(error.message), duration_text(now - self._began)
        self._write(
            reason,
            f"{reason} ({span} so far; ctrl-C is safe)",
            f"{reason}: waiting until it is done",
        )
        await self._console.clock.sleep(max(error.retry_after_s or 0.0, _LEAST_S))
        self._until += self._console.clock.monotonic() - now

    def _tell(self, reason: str, left_s: float) -> None:
        span = duration_text(left_s)
        self._write(
            reason,
            f"{reason}: trying again (for {span}; ctrl-C gives up)",
            f"{reason}: trying again for {span}",
        )

    def _write(self, reason: str, live: str, line: str) -> None:
        """Redraw the live line, or print a line once for each reason."""
        if self._console.is_quiet:
            return
        if self._console.has_live_progress:
            self._console.stderr.write(f"\r\x1b[K{visible(live)}")
            self._console.stderr.flush()
            self._is_drawn = True
        elif reason != self._said:
            self._said = reason
            self._console.say(line)

    def close(self) -> None:
        """Erase the line."""
        if self._is_drawn:
            self._console.stderr.write("\r\x1b[K")
            self._console.stderr.flush()
            self._is_drawn = False
