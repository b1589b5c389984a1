"""Asks the control plane which nodes have a dataset, by the Control stream: its leader alone knows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.v1 import agents_pb2 as agents
    from nsml.v1 import peers_pb2 as pb

_ANSWERED_WITHIN_S: Final = 3.0


class PeerFinder:
    """Questions and their answers.

    Args:
        asked: called when there is a question to be sent.
    """

    def __init__(self, asked: Callable[[], object]) -> None:
        self.is_answered = False
        """Whether the control plane answers such questions."""
        self._asked = asked
        self._open: dict[str, asyncio.Future[Sequence[pb.Peer]]] = {}
        self._unsent: list[tuple[str, bool]] = []

    async def find(self, root: str, is_stream: bool) -> Sequence[pb.Peer]:
        """See `sources.Find`."""
        if not self.is_answered:
            return ()
        answer = self._open.get(root)
        if answer is None:
            answer = self._open[root] = asyncio.get_running_loop().create_future()
            self._unsent.append((root, is_stream))
            self._asked()
        try:
            async with asyncio.timeout(_ANSWERED_WITHIN_S):
                return await asyncio.shield(answer)
        except TimeoutError:
            return ()
        finally:
            if self._open.get(root) is answer:
                del self._open[root]

    def take_questions(self) -> list[tuple[str, bool]]:
        """Those that were not sent: dataset versions, and whether each is for a stream."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def answered(self, answer: agents.FoundPeers) -> None:
        """The control plane has answered."""
        waiting = self._open.get(answer.root)
        if waiting is not None and not waiting.done():
            waiting.set_result(tuple(answer.peers))
