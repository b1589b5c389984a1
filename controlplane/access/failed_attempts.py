"""Rate limit of failed attempts by address, against guessing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from nsml.common.hosts import client_of

if TYPE_CHECKING:
    from nsml.common.clock import Clock

MOST_FAILURES = 10
WINDOW_S = 60.0
MOST_ADDRESSES = 4096


@dataclass(slots=True)
class _Failures:
    since: float
    count: int


class FailureLimiter:
    """Counts failed attempts of each address in windows of a minute.

    It limits the work and the log lines caused by guessing: an address over the limit is refused
    without a query of the store. A valid secret is never refused because of others at the same
    address: 256 random bits cannot be guessed, and a neighbour behind the same gateway must not
    be able to lock users out.

    Bounded: the address with the oldest failure is dropped first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def is_limited(self, address: str) -> bool:
        """Return whether this address has failed too often lately."""
        failures = self._current(address)
        return failures is not None and failures.count >= MOST_FAILURES

    def failed(self, address: str) -> int:
        """Count a failure; return how many there are in this window."""
        failures = self._current(address)
        if failures is None:
            failures = _Failures(self._clock.monotonic(), 0)
            self._failures[address] = failures
        failures.count += 1
        self._failures.move_to_end(address)
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)
        return failures.count

    def _current(self, address: str) -> _Failures | None:
        failures = self._failures.get(address)
        if failures is not None and self._clock.monotonic() - failures.since >= WINDOW_S:
            del self._failures[address]
            return None
        return failures


@lru_cache(maxsize=1024)  # called for each call of a connection
def address_of(peer: str) -> str:
    """Return the limits' key of a gRPC peer: see `client_of`; `unix` for peers at this machine's sockets."""
    kind, _, rest = unquote(peer).partition(":")
    if kind in {"ipv4", "ipv6"}:
        return client_of(rest.rpartition(":")[0].removeprefix("[").removesuffix("]"))
    return kind
