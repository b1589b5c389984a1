"""Users' orders about images of this node: pull one before a session needs it, remove one.

No order is stored. A pull continues while its caller asks for its progress, and is cancelled when the caller has
gone; an image that was pulled is kept like one that a session asked for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import structlog

from nodeagent.engine.client import EngineError
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
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
_LOOK_EVERY_S: Final = 1.0
_MOST_REMEMBERED: Final = 64

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Pull:
    """The pull of one image for one user; `image` is the name that the user typed."""

    image: str
    asked_at: float
    words: str = ""
    has_fetched: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    result: resources.ImageStatus | None = None

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
        self._most, self._most_of_one = most
        self._is_used = is_used
        self._answered = answered
        self._changed = changed
        self._clock = clock
        self._run_long = run_long
        self._pulls: OrderedDict[tuple[str, str], _Pull] = OrderedDict()
        self._answers: list[pb.ImageReport] = []
        self._group = BackgroundTasks()

    async def __aenter__(self) -> Self:
        """Begin."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """End all pulls."""
        await self._group.__aexit__(None, None, None)

    def obey(self, order: pb.ImageOrder) -> None:
        """Begin to carry out an order; returns at once."""
        match order.action:
            case pb.IMAGE_ACTION_PULL:
                logins = logins_by_registry(order.registry_logins)
                self._answer(order, self._start_pull(order.owner_id, order.image, logins))
            case pb.IMAGE_ACTION_LOOK:
                pull = self._pulls.get((order.owner_id, order.image))
                if pull is not None:
                    pull.asked_at = self._clock.monotonic()
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
        now = self._clock.monotonic()
        pull = self._pulls.get((owner, image))
        if pull is not None and pull.result is None:
            pull.asked_at = now
            return pull.status()
        running = [key for key, one in self._pulls.items() if one.result is None]
        own = sum(1 for of, _ in running if of == owner)
        if own >= self._most_of_one or len(running) >= self._most:
            count = f"{own} of yours" if own >= self._most_of_one else f"{len(running)}"
            return _failed(image, f"the node pulls {count} already: try again when one has ended")
        pull = self._pulls[owner, image] = _Pull(image=image, asked_at=now)
        self._pulls.move_to_end((owner, image))
        for key in [key for key, one in self._pulls.items() if one.result is not None]:
            if len(self._pulls) > _MOST_REMEMBERED:
                del self._pulls[key]
        self._group.create_task(self._pull(pull, owner, logins))
        return pull.status()

    async def _pull(self, pull: _Pull, owner: str, logins: Mapping[str, Login]) -> None:
        watching = asyncio.ensure_future(self._cancel_abandoned(pull))
        fetch = partial(
            self._images.fetch,
            pull.image,
            pull.say,
            pull.cancelled,
            owner=owner,
            logins=logins,
        )
        try:
            pinned, size = await uninterrupted(self._run_long, fetch, cancel=pull.cancelled.set)
            pull.result = resources.ImageStatus(
                image=pinned,
                state=resources.IMAGE_STATE_PRESENT,
                bytes=max(size, 0),
                fetched=pull.has_fetched,
            )
        except EnvironmentCancelled:
            pull.result = _failed(pull.image, "it was cancelled: no client was waiting")
        except (EnvironmentFailed, EngineError, OSError) as error:
            pull.result = _failed(pull.image, _reason(error))
        except Exception:
            log.exception("image.pull_failed", image=pull.image)
            pull.result = _failed(pull.image, "the agent failed; its log says more")
        finally:
            watching.cancel()
        self._changed()

    async def _cancel_abandoned(self, pull: _Pull) -> None:
        """Cancel a pull once nobody has asked for its progress for a while."""
        while self._clock.monotonic() < pull.asked_at + _ABANDONED_AFTER_S:
            await self._clock.sleep(_LOOK_EVERY_S)
        pull.cancelled.set()

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
        except (EnvironmentFailed, EngineError, OSError) as error:
            status.words = _reason(error)
        except Exception:
            log.exception("image.removal_failed", image=order.image)
            status.words = "the agent failed; its log says more"
        log.info("image.removal", image=order.image, state=status.state, reason=status.words)
        self._changed()
        self._answer(order, status)


def _failed(image: str, words: str) -> resources.ImageStatus:
    return resources.ImageStatus(image=image, state=resources.IMAGE_STATE_FAILED, words=words)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
