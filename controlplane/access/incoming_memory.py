"""Memory limit for incomplete messages of all users together.

gRPC delivers a message only when it is complete, and buffers up to 4 MiB of it until then. So each message that takes
longer than a moment counts with its maximum size. If there is no room for another, a message of the user with the most
is cancelled: so a user who sends little is never refused because of others' unfinished messages.
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
"""Maximum size of a message that is read (controlplane.startup.server)."""
AHEAD_BYTES: Final = 128 << 10
"""The same for a message that is not read yet."""
LATE_S: Final = 0.05
"""A message is counted after twice this time, in seconds: most arrive at once."""
LIMIT: Final = "request_bytes"
"""Name of the setting, and of the count of refusals."""
STRANGERS: Final = ""
"""Stands for the user of all calls without a credential."""


class Arriving:
    """The incomplete messages of one server.

    Args:
        most_bytes: memory limit for all together; 0 is no limit. One message always has room.
        refused: counts cancelled messages, by the name of the limit.
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
        """Register an awaited message; after a moment it counts.

        Args:
            who: the user it is charged to; None: it does not count.
            size: bytes that it counts.
            end: ends the wait for it, after `within_s` seconds or when others need its room.
            within_s: time limit, seconds; None: none.
        """
        return Message(self, who, size, end, within_s)

    def error(self) -> LimitReached:
        """Return the error of a cancelled message."""
        return LimitReached(
            "too many large requests are being sent to this control plane at one time",
            why=f"those that have not arrived whole may take {size_text(self._most)} together ({LIMIT}), "
            "and of all users you have the most of them",
            attempt="the same again, with fewer commands at one time",
        )

    def count(self, message: Message) -> None:
        """Count a message; while there is no room, cancel one of the user with the most."""
        if message.who is None:
            return
        self._by_user.setdefault(message.who, {})[message] = None
        self._bytes[message.who] += message.size
        while self._bytes.total() > self._most:
            # Among equal users the one that has waited longest for its messages; of that user the newest message,
            # so that the others can complete.
            last = max(self._by_user, key=lambda who: self._bytes[who])
            given_up = next(reversed(self._by_user[last]))
            self.leave(given_up)
            self._refused[LIMIT] += 1
            given_up.give_up()

    def leave(self, message: Message) -> None:
        """Remove a message that is complete, or not awaited any more; idempotent."""
        who = message.who
        if who is None or message not in self._by_user.get(who, ()):
            return
        del self._by_user[who][message]
        self._bytes[who] -= message.size
        if not self._by_user[who]:
            del self._by_user[who], self._bytes[who]


class Message:
    """One message, from the start of the wait for it until `over`."""

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
        # One timer at a time: most messages need only the first.
        self._timer = asyncio.get_running_loop().call_later(LATE_S, self._late)

    def give_up(self) -> None:
        """End the wait for it, since others need its room."""
        self.is_given_up = True
        self._end()

    def over(self) -> None:
        """End the registration: it is complete, or not awaited any more."""
        self._timer.cancel()
        self._arriving.leave(self)

    def _late(self) -> None:
        # Wait once more: if the loop was busy, it may have arrived already.
        self._timer = asyncio.get_running_loop().call_later(LATE_S, self._later)

    def _later(self) -> None:
        if self._within_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._within_s, self._end)
        self._arriving.count(self)
