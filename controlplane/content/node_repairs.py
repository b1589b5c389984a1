"""Repairs lost blobs of the object store from nodes with the dataset version or the checkpoint.

An agent reads its own tree, checks each blob against its digest, and uploads it as usual: the object
store accepts only blobs that match their digests. Reports of agents are not trusted, but checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.errors import NsmlError
from controlplane.state.agent_connections import Ability, RepairOrder
from controlplane.state.agent_questions import AgentQuestions
from controlplane.state.lru import LruDict
from nsml.v1 import agents_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from controlplane.content.verification import Verification
    from controlplane.history.sql.history import History
    from controlplane.history.values import Checkpoint
    from controlplane.objects.interface import ObjectStore
    from controlplane.state.agent_connections import AgentConnection, AgentConnections
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

ANSWER_WITHIN_S: Final = 15.0
"""An agent's timeout for an order."""
WORK_S: Final = 10.0
"""A call sends no further orders after this time."""
MOST_ASKED: Final = 128
"""Max blobs per order: 128 MiB at most."""
MOST_NODES: Final = 16
"""Max nodes asked for one content without having reported it."""
_REMEMBERED: Final = 1_024
_MOST_WORDS: Final = 300
_MOST_REASONS: Final = 64


@dataclass(slots=True, kw_only=True)
class Repaired:
    """Result of one call.

    Attributes:
        sources: where each repaired blob came from, for display, by digest.
        lost: blobs that are still unreadable.
        reasons: why nodes sent nothing, for some of them.
        in_vain: number of nodes that sent nothing.
        is_partial: more nodes are to be asked, in another call.
    """

    sources: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    in_vain: int = 0
    is_partial: bool = False


class _InVain(NamedTuple):
    """A node sent nothing: when (monotonic seconds), and over which connection: after a reconnect it is asked again."""

    at: float
    link: AgentConnection | None
    words: str


class NodeRepairs:
    """Orders repairs from agents; on the leader."""

    def __init__(
        self,
        *,
        verification: Verification,
        objects: ObjectStore,
        history: History,
        state: LiveState,
        contacts: AgentConnections,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._questions = AgentQuestions[agents_pb2.RepairReport](
            contacts=contacts,
            random_bytes=random_bytes,
            subject="repairs",
            ability=Ability.REPAIRS,
        )
        self._verification = verification
        self._objects = objects
        self._history = history
        self._state = state
        self._contacts = contacts
        self._clock = clock
        self._within_s = answer_within_s
        self._vain: LruDict[tuple[str, str, tuple[str, ...]], _InVain] = LruDict(_REMEMBERED)

    def answered(self, node: str, report: agents_pb2.RepairReport) -> None:
        """Pass an agent's report to AgentQuestions."""
        self._questions.answered(node, report.order_id, report)

    def ask_anew(self, root: str) -> None:
        """Make `repair` ask all nodes for some content, even those that recently sent nothing."""
        self._vain.forget_where(lambda key: key[0] == root)

    async def repair(self, user_id: str, root: str) -> Repaired:
        """Repair lost blobs of some content, for about WORK_S."""
        done = Repaired(lost=await self._verification.lost(root))
        if not done.lost:
            return done
        until, is_asked = self._clock.monotonic() + WORK_S, False
        saved = await self._history.catalogue.checkpoints_of(root)
        holders = list(self._holders(root, saved))
        # If none answers, a call asks one node: remember the first until the last was asked.
        vain_for_s = WORK_S + 2 * len(holders) * self._within_s
        for node, checkpoint in holders:
            wanted = sorted(done.lost)
            for start in range(0, len(wanted), MOST_ASKED):
                some = tuple(wanted[start : start + MOST_ASKED])
                link = self._contacts.link(node)
                words = known = self._in_vain((root, node, some), link, vain_for_s)
                if not known:
                    if is_asked and self._clock.monotonic() > until:
                        done.is_partial = True
                        return done
                    is_asked = True
                    words = await self._ask(user_id, node, root, some, checkpoint)
                put = set(some) - await self._objects.has_missing(some)
                done.sources.update(dict.fromkeys(put, f"node {node}"))
                done.lost -= put
                if not put:
                    words = words or "it sent nothing that it was asked for"
                    if not known:
                        vain = _InVain(self._clock.monotonic(), link, words)
                        self._vain.keep((root, node, some), vain)
                    done.in_vain += 1
                    if len(done.reasons) < _MOST_REASONS:
                        done.reasons.append(f"{node}: {words}")
                    break
            if not done.lost:
                # A repaired root or page may list more lost blobs.
                done.lost = await self._verification.lost(root)
                break
        return done

    def _in_vain(
        self,
        key: tuple[str, str, tuple[str, ...]],
        link: AgentConnection | None,
        within_s: float,
    ) -> str:
        """Return why a node recently sent none of these; "" if it is to be asked. `link`: its current connection."""
        vain = self._vain.get(key)
        if vain is None or vain.link is not link:
            return ""
        return vain.words if self._clock.monotonic() - vain.at < within_s else ""

    async def _ask(
        self,
        user_id: str,
        node: str,
        root: str,
        digests: tuple[str, ...],
        checkpoint: Checkpoint | None,
    ) -> str:
        """Order blobs from a node; return its reason for not sending all, "" if it reports success."""

        def send(link: AgentConnection, order_id: str) -> None:
            order = RepairOrder(order_id, root, digests)
            if checkpoint is not None:
                order = order._replace(
                    session_id=checkpoint.session_id,
                    attempt=checkpoint.attempt,
                    rank=checkpoint.rank,
                    folder=checkpoint.folder,
                )
            link.order_repair(order)

        try:
            report = await self._questions.ask(user_id, node, send, within_s=self._within_s)
        except NsmlError as error:
            return error.message
        return report.words[:_MOST_WORDS]

    def _holders(
        self, root: str, saved: tuple[Checkpoint, ...]
    ) -> Iterator[tuple[str, Checkpoint | None]]:
        """Yield nodes that have or may have the content, each with the checkpoint there, if any."""
        linked = {one.node for one in self._contacts.links() if Ability.REPAIRS in one.abilities}
        for checkpoint in saved:
            if checkpoint.node in linked:
                yield checkpoint.node, checkpoint
        linked -= {checkpoint.node for checkpoint in saved}  # they searched their trees, too
        holders = {node for node in linked if root in self._state.stock(node).things}
        for node in sorted(holders):
            yield node, None
        # A node reports only the versions used last, and no code.
        for node in sorted(linked - holders)[:MOST_NODES]:
            yield node, None
