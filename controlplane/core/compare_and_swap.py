"""Change one record for a user: read, change, compare, write; retried after a conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import RETRY_AFTER_S, Unavailable
from controlplane.store.interface import (
    CommitUnknown,
    Get,
    Put,
    StoreUnavailable,
    Transaction,
    unchanged,
)
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.domain.values import Session
    from controlplane.limits.admission import Admission
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import Compare, Delete, KeyValueStore

TRIES: Final = 20


def store_unavailable() -> Unavailable:
    """Return the error of a write with an unknown result, which may be repeated."""
    return Unavailable(
        "the platform's store does not answer",
        attempt="the same again",
        retry_after_s=RETRY_AFTER_S,
    )


async def commit_at(
    store: KeyValueStore,
    state: LiveState,
    key: str,
    compares: Sequence[Compare],
    write: Put | Delete,
) -> bool:
    """Write at `key`, and return whether it was committed; after a conflict the state has the store's record.

    Raises:
        Unavailable: the store does not answer; the write may have been committed.
    """
    transaction = Transaction(compares=tuple(compares), success=(write,), failure=(Get(key=key),))
    try:
        result = await store.commit(transaction)
    except (CommitUnknown, StoreUnavailable) as error:
        raise store_unavailable() from error
    if result.succeeded:
        value, revision = write.value if isinstance(write, Put) else None, result.revision
    else:
        item = result.responses[0].item
        value, revision = (item.value, item.mod_revision) if item else (None, result.revision)
    if value is None:
        state.delete(key, revision)
    else:
        state.put(key, value, revision)
    return result.succeeded


class SessionWriter:
    """Writes single sessions; any control plane may, leader or not.

    Users' requests do not allocate devices, so they are not fenced: the compare on the session's
    revision is enough.
    """

    def __init__(
        self, *, store: KeyValueStore, state: LiveState, admission: Admission | None = None
    ) -> None:
        self._admission = admission
        self._store = store
        self._state = state

    async def change(
        self, session_id: str, decide: Callable[[Session], Session], *, is_counted: bool = True
    ) -> Session | None:
        """Write the session changed by `decide`; None if it is not live (any more).

        `decide` may be called several times and may refuse by raising. With `is_counted` the whole record
        is charged to its owner's write limit.

        Raises:
            LimitReached: that exceeds the owner's limit.
            Unavailable: the store does not answer; the change may have been committed.
        """
        key = etcd_codec.session_key(session_id)
        for _ in range(TRIES):
            stored = self._state.sessions.get(session_id)
            if stored is None:
                return None
            session = decide(stored.value)
            if session == stored.value:
                return session
            put = Put(key=key, value=etcd_codec.encode_session(session))
            if is_counted and self._admission is not None:
                self._admission.write(session.owner, len(put.value))
            compares = [unchanged(key, stored.revision)]
            if await commit_at(self._store, self._state, key, compares, put):
                return session
        raise Unavailable("the session changes all the time", attempt="the same again")
