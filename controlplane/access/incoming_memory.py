"""Messages that are still arriving: how much memory those of all users may take together.

gRPC shows a message only once all of it is here, and holds up to 4 MiB of it until then. So each message that takes
longer than a moment counts as a whole one. Where there is no room for another, one of the user with the most gives
its room up: a user who sends little is refused nothing, whatever others leave unfinished.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import LimitReached
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_BYTES: Final = 4 << 20
"""What a message that is read may hold (controlplane.startup.server)."""
AHEAD_BYTES: Final = 128 << 10
"""The same of one that nobody reads yet."""
LATE_S: Final = 0.05
"""Twice as long a message may take without being counted: most are here at once."""
LIMIT: Final = "request_bytes"
"""The setting, and the name under which refusals are counted."""
STRANGERS: Final = ""
"""As whose all calls without a credential count together."""


class Arriving:
    """Those of one server.

    Args:
        most_bytes: how much memory they may take together; 0 is no limit. One message always has room.
        refused: counts, by the name of the limit, those that gave their room up.
    """

    def __init__(self, most_bytes: int = 0, refused: Counter[str] | None = None) -> None:
        self._most = max(most_bytes, MESSAGE_BYTES) if most_bytes else sys.maxsize
        self._refused = refused if refused is not None else Counter()
        self._bytes: Counter[str] = Counter()
        self._by_user: dict[str, dict[Message, None]] = {}
        """The messages of each user, the oldest first."""

    def begin(
        self, who: str | None, size: int, end: Callable[[], None], within_s: float | None
    ) -> Message:
        """A message that is awaited from now on; after a moment it counts.

        Args:
            who: the user as whose it counts; None: it does not count.
            size: for how many bytes.
            end: ends the wait for it, after `within_s` seconds or when others need its room.
            within_s: None: it may take as long as it likes.
        """
        return Message(self, who, size, end, within_s)

    def error(self) -> LimitReached:
        """Why a message gave its room up."""
        return LimitReached(
            "too many large requests are being sent to this control plane at one time",
            why=f"those that have not arrived whole may take {size_text(self._most)} together ({LIMIT}), "
            "and of all users you have the most of them",
            attempt="the same again, with fewer commands at one time",
        )

    def count(self, message: Message) -> None:
        """Count a message, and end one of the user with the most as long as there is no room."""
        if message.who is None:
            return
        self._by_user.setdefault(message.who, {})[message] = None
        self._bytes[message.who] += message.size
        while self._bytes.total() > self._most:
            # Of equals the one that has waited longest for its messages; of one user the newest message, so that
            # the others come to an end.
            last = max(self._by_user, key=lambda who: self._bytes[who])
            given_up = next(reversed(self._by_user[last]))
            self.leave(given_up)
            self._refused[LIMIT] += 1
            given_up.give_up()

    def leave(self, message: Message) -> None:
        """It has come, or is not awaited any more; again does no harm."""
        who = message.who
        if who is None or message not in self._by_user.get(who, ()):
            return
        del self._by_user[who][message]
        self._bytes[who] -= message.size
        if not self._by_user[who]:
            del self._by_user[who], self._bytes[who]


class Message:
    """One message from the moment that somebody waits for it until `over`."""

    def __init__(
        self,
        arriving: Arriving,
        who: str | None,
        size: int,
        end: Callable[[], None],
        within_s: float | None,
    ) -> None:
        self.who = who
        self.size = size
        self.is_given_up = False
        self._arriving = arriving
        self._end = end
        self._within_s = within_s
        # One timer at a time: most messages need no more than the first.
        self._timer = asyncio.get_running_loop().call_later(LATE_S, self._late)

    def give_up(self) -> None:
        """End the wait for it, since others need its room."""
        self.is_given_up = True
        self._end()

    def over(self) -> None:
        """It is here, or not awaited any more."""
        self._timer.cancel()
        self._arriving.leave(self)

    def _late(self) -> None:
        # Once more: where the loop was busy it may be here already.
        self._timer = asyncio.get_running_loop().call_later(LATE_S, self._later)

    def _later(self) -> None:
        if self._within_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._within_s, self._end)
        self._arriving.count(self)
