"""Users' orders about images of this node: pull one before a session needs it, remove one.

Orders are not stored. A pulled image is kept like one that a session requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import structlog

from nodeagent.client_work import AGENT_FAILED, FAILURES, ClientWork, Work, reason_of
from nodeagent.replica.secrets import logins_by_registry
from nodeagent.storage.transfer import uninterrupted
from nsml.common.concurrency import BackgroundTasks
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.engine.pulls import Login
    from nodeagent.environments.images import Images
    from nsml.common.clock import Clock, Offload

_ABANDONED_AFTER_S: Final = 60.0

log = structlog.get_logger()


@dataclass(slots=True, eq=False, kw_only=True)
class _Pull(Work[resources.ImageStatus]):
    """The pull of one image for one user; `image` is the name that the user typed."""

    image: str
    words: str = ""
    has_fetched: bool = False

    def status(self) -> resources.ImageStatus:
        return self.result or resources.ImageStatus(
            image=self.image, state=resources.IMAGE_STATE_PULLING, words=self.words
        )

    def say(self, piece: bytes) -> None:
        """Take a line of the pull's progress; from any thread."""
        self.has_fetched = True
        self.words = piece.decode(errors="replace").strip().partition(": ")[2]


class ImageOrders:
    """Carries out the orders. A context manager: leaving it cancels the running pulls.

    Args:
        images: of this node.
        most: the limits of concurrent pulls: on the node, and of one user.
        is_used: whether a replica needs the image of this key; blocking.
        answered: called when there is an answer.
        changed: called when the node may have other images.
    """

    def __init__(
        self,
        images: Images,
        *,
        most: tuple[int, int],
        is_used: Callable[[str], bool],
        answered: Callable[[], object],
        changed: Callable[[], object],
        clock: Clock,
        run_long: Offload,
    ) -> None:
        self._images = images
        self._is_used = is_used
        self._answered = answered
        self._changed = changed
        self._run_long = run_long
        self._pulls = ClientWork[_Pull](
            ("pulls", "image"),
            most=most,
            abandoned_after_s=_ABANDONED_AFTER_S,
            clock=clock,
            run_long=run_long,
        )
        self._answers: list[pb.ImageReport] = []
        self._group = BackgroundTasks()

    async def __aenter__(self) -> Self:
        """Begin."""
        await self._group.__aenter__()
        await self._pulls.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """End all pulls."""
        await self._pulls.__aexit__(None, None, None)
        await self._group.__aexit__(None, None, None)

    def obey(self, order: pb.ImageOrder) -> None:
        """Begin to carry out an order; returns at once."""
        match order.action:
            case pb.IMAGE_ACTION_PULL:
                logins = logins_by_registry(order.registry_logins)
                self._answer(order, self._start_pull(order.owner_id, order.image, logins))
            case pb.IMAGE_ACTION_LOOK:
                pull = self._pulls.find(order.owner_id, order.image)
                absent = resources.ImageStatus(
                    image=order.image, state=resources.IMAGE_STATE_ABSENT
                )
                self._answer(order, absent if pull is None else pull.status())
            case pb.IMAGE_ACTION_REMOVE:
                self._group.create_task(self._remove(order))
            case action:
                log.warning("image.unknown_action", action=action)

    def take_answers(self) -> list[pb.ImageReport]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def _answer(self, order: pb.ImageOrder, status: resources.ImageStatus) -> None:
        self._answers.append(pb.ImageReport(order_id=order.order_id, status=status))
        self._answered()

    def _start_pull(
        self, owner: str, image: str, logins: Mapping[str, Login]
    ) -> resources.ImageStatus:
        """Begin a pull, unless it is running."""
        pull = self._pulls.find(owner, image)
        if pull is not None and pull.result is None:
            return pull.status()
        if refusal := self._pulls.refusal(owner):
            return _failed(image, refusal)
        pull = _Pull(image=image, asked_at=self._pulls.now())
        self._pulls.start(
            owner,
            image,
            pull,
            partial(self._fetched, pull, owner, logins),
            failed=partial(_failed, image),
            ended=self._changed,
        )
        return pull.status()

    def _fetched(
        self, pull: _Pull, owner: str, logins: Mapping[str, Login]
    ) -> resources.ImageStatus:
        """Get the image. Blocking."""
        pinned, size = self._images.fetch(
            pull.image, pull.say, pull.cancelled, owner=owner, logins=logins
        )
        return resources.ImageStatus(
            image=pinned,
            state=resources.IMAGE_STATE_PRESENT,
            bytes=max(size, 0),
            fetched=pull.has_fetched,
        )

    async def _remove(self, order: pb.ImageOrder) -> None:
        status = resources.ImageStatus(image=order.image, state=resources.IMAGE_STATE_KEPT)
        discard = partial(self._images.discard, order.image, self._is_used)
        try:
            is_gone, words = await uninterrupted(self._run_long, discard)
            if not is_gone:
                status.words = words
            elif words:
                status.state = resources.IMAGE_STATE_REMOVED
            else:
                status.state = resources.IMAGE_STATE_ABSENT
        except FAILURES as error:
            status.words = reason_of(error)
        except Exception:
            log.exception("image.removal_failed", image=order.image)
            status.words = AGENT_FAILED
        log.info("image.removal", image=order.image, state=status.state, reason=status.words)
        self._changed()
        self._answer(order, status)


def _failed(image: str, words: str) -> resources.ImageStatus:
    return resources.ImageStatus(image=image, state=resources.IMAGE_STATE_FAILED, words=words)
