"""Trying again while a platform answers that a part of it is away, and that this passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from nsml.client.errors import Unavailable
from nsml.view.text import visible
from nsml.view.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cli.app import App

T = TypeVar("T")

DEFAULT_S: Final = 120.0
_LEAST_S: Final = 0.1


async def patiently(app: App, attempt: Callable[[], Awaitable[T]], *, patience_s: float) -> T:
    """What `attempt` gives, tried again for so long while the platform says when to come again.

    Each try has to be safe after one whose answer was lost. Where nobody answers at all nothing is
    repeated: there is no telling that it passes.

    Raises:
        Unavailable: it has not passed within that time.
    """
    until = app.clock.monotonic() + patience_s
    waits = _Waiting(app)
    try:
        while True:
            try:
                return await attempt()
            except Unavailable as error:
                left_s = until - app.clock.monotonic()
                if error.retry_after_s is None or left_s <= 0:
                    raise
                waits.tell(visible(error.message), left_s)
                await app.clock.sleep(max(min(error.retry_after_s, left_s), _LEAST_S))
    finally:
        waits.close()


class _Waiting:
    """Says why nothing happens: on a terminal in one line that counts down, else once a reason."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._said = ""
        self._is_drawn = False

    def tell(self, reason: str, left_s: float) -> None:
        if self._app.flags.is_quiet:
            return
        if self._app.has_live_progress:
            words = f"{reason}: trying again (for {duration_text(left_s)}; ctrl-C gives up)"
            self._app.stderr.write(f"\r\x1b[K{words}")
            self._app.stderr.flush()
            self._is_drawn = True
        elif reason != self._said:
            self._said = reason
            self._app.say(f"{reason}: trying again for {duration_text(left_s)}")

    def close(self) -> None:
        if self._is_drawn:
            self._app.stderr.write("\r\x1b[K")
            self._app.stderr.flush()
            self._is_drawn = False
