"""Asks the control plane which nodes have a dataset, over the Control stream: only its leader knows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.v1 import agents_pb2 as agents
    from nsml.v1 import peers_pb2 as pb

_ANSWERED_WITHIN_S: Final = 3.0


class PeerFinder:
    """Questions to the control plane, and its answers.

    Args:
        asked: called when a question is to be sent.
    """

    def __init__(self, asked: Callable[[], object]) -> None:
        self.is_answered = False
        """Whether the control plane answers such questions."""
        self._asked = asked
        self._open: dict[tuple[str, bool], asyncio.Future[Sequence[pb.Peer]]] = {}
        self._unsent: list[tuple[str, bool]] = []

    async def find(self, root: str, is_stream: bool) -> Sequence[pb.Peer]:
        """See `sources.Find`."""
        if not self.is_answered:
            return ()
        # Fetches ask apart from streams: they get nodes that are fetching too, and are reported to others.
        question = (root, is_stream)
        answer = self._open.get(question)
        if answer is None:
            answer = self._open[question] = asyncio.get_running_loop().create_future()
            self._unsent.append(question)
            self._asked()
        try:
            async with asyncio.timeout(_ANSWERED_WITHIN_S):
                return await asyncio.shield(answer)
        except TimeoutError:
            return ()
        finally:
            if self._open.get(question) is answer:
                del self._open[question]

    def take_questions(self) -> list[tuple[str, bool]]:
        """Return unsent questions: dataset versions, and whether each is for a stream."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def answered(self, answer: agents.FoundPeers) -> None:
        """Process an answer of the control plane: they arrive in the order of the questions."""
        for (root, _), waiting in self._open.items():
            if root == answer.root and not waiting.done():
                waiting.set_result(tuple(answer.peers))
                return
