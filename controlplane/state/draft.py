"""A set of writes being decided: reads through to the live state, becomes one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.changes import NodeRemoved
from controlplane.domain.values import Allocation
from controlplane.store.interface import (
    Compare,
    Delete,
    Get,
    Operation,
    Put,
    Transaction,
    unchanged,
)
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.domain.notices import Notice
    from controlplane.domain.values import Node, Session
    from controlplane.state.live_state import LiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A session to delete with its name and request id; `notice` replaces it."""

    session: Session
    notice: Notice | None = None


class Draft:
    """Decisions are made on a draft of a draft and merged when complete.

    Args:
        state: the live state.
        base: the draft below this one.

    Attributes:
        written: the records encoded by `transaction`, by their bytes.
    """

    def __init__(self, state: LiveState, base: Draft | None = None) -> None:
        self.state = state
        self._base = base
        self._sessions: dict[str, Session | Removed] = {}
        self._allocations: dict[str, Allocation] = {}
        self._nodes: dict[str, Node | NodeRemoved] = {}
        self._placed: list[tuple[str, int]] = []
        self.written: dict[bytes, Session | Allocation] = {}

    def session(self, session_id: str) -> Session | None:
        """Return the session with the draft applied."""
        found = self._sessions.get(session_id)
        if found is None:
            if self._base is not None:
                return self._base.session(session_id)
            return self.state.session(session_id)
        return None if isinstance(found, Removed) else found

    def put_session(self, session: Session) -> None:
        """Write a session that exists."""
        self._sessions[session.id] = session

    def place_session(self, session: Session) -> None:
        """Write a session with a new attempt."""
        self.put_session(session)
        self._placed.append((session.id, session.attempt))

    def remove_session(self, session: Session, notice: Notice | None = None) -> None:
        """Delete a session with its name and request id, and record a notice to its owner."""
        self._sessions[session.id] = Removed(session=session, notice=notice)

    def node(self, name: str) -> Node | None:
        """Return a node with the draft applied."""
        found = self._nodes.get(name)
        if found is not None:
            return None if isinstance(found, NodeRemoved) else found
        if self._base is not None:
            return self._base.node(name)
        stored = self.state.nodes.get(name)
        return stored.value if stored else None

    def put_node(self, node: Node) -> None:
        """Write a node."""
        self._nodes[node.name] = node

    def remove_node(self, name: str) -> None:
        """Delete a node. Its allocation stays: the next orders for its name must be newer ones."""
        self._nodes[name] = NodeRemoved(name=name)

    def allocation(self, node: str) -> Allocation:
        """Return the node's allocation with the draft applied; empty without a record."""
        found = self._allocations.get(node)
        if found is not None:
            return found
        if self._base is not None:
            return self._base.allocation(node)
        stored = self.state.allocations.get(node)
        return stored.value if stored else Allocation(node=node)

    def put_allocation(self, allocation: Allocation) -> None:
        """Write a node's allocation."""
        self._allocations[allocation.node] = allocation

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be written."""
        return not (self._sessions or self._allocations or self._nodes)

    def merge(self, other: Draft) -> None:
        """Merge the decisions of a draft based on this one."""
        self._sessions.update(other._sessions)
        self._allocations.update(other._allocations)
        self._nodes.update(other._nodes)
        self._placed += other._placed

    def operations_with(self, other: Draft) -> int:
        """Return the number of operations of the merged draft."""
        sessions = {**self._sessions, **other._sessions}
        removed = [entry for entry in sessions.values() if isinstance(entry, Removed)]
        notices = sum(1 for entry in removed if entry.notice is not None)
        allocations = self._allocations.keys() | other._allocations.keys()
        nodes = self._nodes.keys() | other._nodes.keys()
        return len(sessions) + 2 * len(removed) + notices + len(allocations) + len(nodes)

    def transaction(self, fence: Compare) -> Transaction:
        """Build the transaction; it fails if others changed a written key, or the fence fails.

        The failure branch reads the fence's key first and then every compared key.
        """
        success = tuple(self._operations(int(fence.operand)))
        compares = (fence, *self._compares())
        return Transaction(
            compares=compares,
            success=success,
            failure=tuple(Get(key=compare.key) for compare in compares),
        )

    def _compares(self) -> Iterator[Compare]:
        for session_id in self._sessions:
            stored = self.state.sessions.get(session_id)
            yield unchanged(etcd_codec.session_key(session_id), stored.revision if stored else 0)
        for name in self._allocations:
            held = self.state.allocations.get(name)
            yield unchanged(etcd_codec.allocation_key(name), held.revision if held else 0)
        for name in self._nodes:
            node = self.state.nodes.get(name)
            yield unchanged(etcd_codec.node_key(name), node.revision if node else 0)

    def _operations(self, term: int) -> Iterator[Operation]:
        for session_id, entry in self._sessions.items():
            if isinstance(entry, Removed):
                yield Delete(key=etcd_codec.session_key(session_id))
                yield Delete(key=etcd_codec.name_key(entry.session.name))
                yield Delete(
                    key=etcd_codec.request_key(entry.session.owner, entry.session.request_id)
                )
                if entry.notice is not None:
                    yield Put(
                        key=etcd_codec.notice_key(entry.notice),
                        value=etcd_codec.encode_notice(entry.notice),
                    )
            else:
                value = etcd_codec.encode_session(entry, term=term)
                self.written[value] = entry
                yield Put(key=etcd_codec.session_key(session_id), value=value)
        for name, allocation in self._allocations.items():
            value = etcd_codec.encode_allocation(allocation, term=term)
            self.written[value] = allocation
            yield Put(key=etcd_codec.allocation_key(name), value=value)
        for name, node in self._nodes.items():
            key = etcd_codec.node_key(name)
            if isinstance(node, NodeRemoved):
                yield Delete(key=key)
            else:
                yield Put(key=key, value=etcd_codec.encode_node(node))

    def applied(self, revision: int) -> None:
        """Update the live state: the transaction was committed at `revision`."""
        # Sessions first: orders are built from allocations and look up their sessions.
        for session_id, entry in self._sessions.items():
            if isinstance(entry, Removed):
                self.state.delete(etcd_codec.session_key(session_id), revision)
            else:
                self.state.put_session(entry, revision)
        for session_id, attempt in self._placed:
            self.state.held.placed(session_id, attempt, by_us=True)
        for allocation in self._allocations.values():
            self.state.put_allocation(allocation, revision)
        for name, node in self._nodes.items():
            if isinstance(node, NodeRemoved):
                self.state.delete(etcd_codec.node_key(name), revision)
            else:
                self.state.put_node(node, revision)
