"""Write new sessions to the store: record, name, number and request id in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.store.interface import Get, Put, Transaction, absent, unchanged
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.domain.values import Allocation, Session
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import Compare, KeyValueStore


async def put_sessions(
    store: KeyValueStore,
    state: LiveState,
    sessions: Iterable[Session],
    last: Mapping[str, int],
    further: Iterable[Compare] = (),
) -> int:
    """Write sessions of new requests; return the revision, or 0 after a concurrent write.

    Afterwards `state` has the store's values.

    Args:
        store: the coordination store.
        state: our copy of it.
        sessions: with unique names and request ids.
        last: the highest numbers assigned to them, by counter key.
        further: more conditions of the transaction.

    Raises:
        InvalidTransaction: together they are too large.
        CommitUnknown, StoreUnavailable: they may have been written, or not.
    """
    made = list(sessions)
    counters = {key: state.counters.get(key) for key in last}
    compares = [unchanged(key, known.revision if known else 0) for key, known in counters.items()]
    compares += [absent(etcd_codec.request_key(one.owner, one.request_id)) for one in made]
    compares += sorted(further, key=lambda one: (one.key, str(one.operand)))
    puts = [Put(key=key, value=etcd_codec.encode_counter(number)) for key, number in last.items()]
    written: dict[bytes, Session | Allocation] = {}
    for session in made:
        pointer = etcd_codec.encode_pointer(session.id)
        value = etcd_codec.encode_session(session)
        written[value] = session
        puts += [
            Put(key=etcd_codec.session_key(session.id), value=value),
            Put(key=etcd_codec.name_key(session.name), value=pointer),
            Put(key=etcd_codec.request_key(session.owner, session.request_id), value=pointer),
        ]
    transaction = Transaction(
        compares=tuple(compares),
        success=tuple(puts),
        failure=tuple(Get(key=compare.key) for compare in compares),
    )
    with state.expecting(written):
        result = await store.commit(transaction)
    if not result.succeeded:
        for compare, response in zip(compares, result.responses, strict=True):
            if response.item is None:
                state.delete(compare.key, result.revision)
            else:
                item = response.item
                state.put(item.key, item.value, item.mod_revision)
        # The caller looks for an existing request again: its session is known by then.
        await state.reached(result.revision)
        return 0
    for counter, number in last.items():
        state.put_counter(counter, number, result.revision)
    for session in made:
        state.put_session(session, result.revision)
    return result.revision
