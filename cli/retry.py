"""Trying again while a platform answers that a part of it is away, and that this passes."""

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
"""For a call that only reads, or stops something."""
_LEAST_S: Final = 0.1


class Console(Protocol):
    """Where a command says what it waits for: `cli.app.App`."""

    @property
    def clock(self) -> Clock:
        """Measures and sleeps."""
        ...

    @property
    def stderr(self) -> IO[str]:
        """For words beside the result."""
        ...

    @property
    def has_live_progress(self) -> bool:
        """Whether a line is drawn that changes."""
        ...

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is said beside the result."""
        ...

    def say(self, text: str) -> None:
        """Write a line beside the result."""
        ...


async def patiently(
    console: Console, attempt: Callable[[], Awaitable[T]], *, patience_s: float
) -> T:
    """What `attempt` gives, tried again for so long while the platform says when to come again.

    Each try has to be safe after one whose answer was lost. Where nobody answers at all nothing is
    repeated: there is no telling that it passes.

    Raises:
        Unavailable: it has not passed within that time.
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
    """How long is waited, and why nothing happens: on a terminal one line that counts down, else once a reason."""

    def __init__(self, console: Console, patience_s: float = CALL_S) -> None:
        self._console = console
        self._began = console.clock.monotonic()
        self._until = self._began + patience_s
        self._said = ""
        self._is_drawn = False

    async def wait(self, error: Unavailable) -> None:
        """Wait as long as the platform said; raises the error where it did not, or for no longer.

        While the platform works for the call there is no limit.
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
        """Draw what changes, or say a line once for each reason."""
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
        """Take the line away."""
        if self._is_drawn:
            self._console.stderr.write("\r\x1b[K")
            self._console.stderr.flush()
            self._is_drawn = False
