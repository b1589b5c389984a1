"""One session changed by a user: read, change, compare, write; again when others were faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import RETRY_AFTER_S, Unavailable
from controlplane.operations import records
from controlplane.store.interface import (
    CommitUnknown,
    Get,
    Put,
    StoreUnavailable,
    Transaction,
    unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.values import Session
    from controlplane.operations.state import LiveState
    from controlplane.store.interface import KeyValueStore

TRIES: Final = 20


class SessionWriter:
    """Writes single sessions; any control plane may, leader or not.

    A wish of a user decides nothing about devices, so it is not fenced: the compare on the
    session's revision is enough.
    """

    def __init__(self, *, store: KeyValueStore, state: LiveState) -> None:
        self._store = store
        self._state = state

    async def change(self, session_id: str, decide: Callable[[Session], Session]) -> Session | None:
        """Write what `decide` makes of the session; None when it does not live (any more).

        `decide` may be called several times and may refuse by raising.

        Raises:
            Unavailable: the store does not answer, and the change may or may not be made.
        """
        key = records.session_key(session_id)
        for _ in range(TRIES):
            stored = self._state.sessions.get(session_id)
            if stored is None:
                return None
            session = decide(stored.value)
            if session == stored.value:
                return session
            put = Put(key=key, value=records.encode_session(session))
            transaction = Transaction(
                compares=(unchanged(key, stored.revision),), success=(put,), failure=(Get(key=key),)
            )
            try:
                result = await self._store.commit(transaction)
            except (CommitUnknown, StoreUnavailable) as error:
                raise Unavailable(
                    "the platform's store does not answer",
                    attempt="the same again",
                    retry_after_s=RETRY_AFTER_S,
                ) from error
            if result.succeeded:
                self._state.put_session(session, result.revision)
                return session
            item = result.responses[0].item
            if item is None:
                self._state.delete(key, result.revision)
            else:
                self._state.put(key, item.value, item.mod_revision)
        raise Unavailable("the session changes all the time", attempt="the same again")
