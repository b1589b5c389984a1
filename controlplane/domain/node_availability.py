"""Texts for people: why a node accepts no sessions, or only some, though it may be connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.values import Isolation

if TYPE_CHECKING:
    from controlplane.domain.values import Drain, Fence, Hold, Node


def closed_words(node: Node) -> str:
    """Return why a node accepts no sessions, ignoring silence; "" if it does."""
    if node.fence is not None:
        return fenced_words(node.name, node.fence)
    if node.hold is not None:
        return f"node {node.name} is held: {hold_words(node.hold)}"
    if node.drain is not None:
        return drained_words(node.name, node.drain)
    return f"node {node.name} is not ready: {node.not_ready}" if node.not_ready else ""


def drained_words(name: str, drain: Drain) -> str:
    """Say who drained a node, and why."""
    return _words(f"node {name} is drained", drain.asked_by, drain.reason)


def fenced_words(name: str, fence: Fence) -> str:
    """Say who fenced a node, and why."""
    return _words(f"node {name} is fenced", fence.asked_by, fence.reason)


def hold_words(hold: Hold) -> str:
    """Describe the orders or replicas of a node's agent that this platform's store never had."""
    if not hold.stands:
        left = "still ends what should not run there" if hold.replicas else "is to take new orders"
        return f"resumed by {hold.lifted_by}, its agent {left}"
    if not hold.replicas:
        return f"its agent obeyed orders (term {hold.term}) that this platform's store never had"
    count = len(hold.replicas)
    what = "a replica" if count == 1 else f"{count} replicas"
    return f"it runs {what} that this platform never placed there"


def _words(what: str, who: str, reason: str) -> str:
    by = f"{what} by {who}" if who else what
    return f"{by}: {reason}" if reason else by


def owner_words(node: Node) -> str:
    """Return the only owner of sessions on a node, and why; "" for a node that isolates users."""
    why = node.only_owner
    if node.isolation is Isolation.NONE:
        why = "it runs sessions without isolation"
    if not why:
        return ""
    whose = f"only sessions of {node.owner}" if node.owner else "no sessions"
    return f"runs {whose}: {why}"
