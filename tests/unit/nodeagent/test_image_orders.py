"""Orders about images: pulls go on while somebody asks, within limits, and each answer is sent once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from nodeagent.engine.client import EngineUnreachable
from nodeagent.engine.pulls import Login
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.image_orders import ImageOrders
from nsml.common.clock import SystemClock, in_own_thread
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources


class Registry:
    """Images that come once `let_go` is set."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.said = threading.Event()
        self.goes_on = False
        self.fails: Exception | None = None
        self.fetched: list[tuple[str, str]] = []
        self.discarded = (True, "removed")

    def fetch(
        self,
        named: str,
        say: Callable[[bytes], object],
        cancelled: threading.Event,
        *,
        owner: str,
        logins: Mapping[str, Login],
    ) -> tuple[str, int]:
        self.logins = logins
        self.fetched.append((owner, named))
        say(f"Pulling image {named}\n".encode())
        say(f"Pulling image {named}: 1 of 2 layers, 3 of 4 MB\n".encode())
        self.goes_on = True
        self.said.set()
        while not self.let_go.wait(0.01):
            if cancelled.is_set():
                self.goes_on = False
                raise EnvironmentCancelled
        if self.fails is not None:
            raise self.fails
        return f"{named}@sha256:1", 7

    def discard(self, _named: str, is_used: Callable[[str], bool]) -> tuple[bool, str]:
        assert not is_used("key")
        return self.discarded


class Node:
    """Orders of one node, and what it answers."""

    def __init__(self, registry: Registry) -> None:
        self.changes = 0
        self.has_changed = asyncio.Event()
        self._answered = asyncio.Event()
        self.orders = ImageOrders(
            registry,  # type: ignore[arg-type]
            most=(3, 2),
            is_used=lambda _: False,
            answered=self._answered.set,
            changed=self._changed,
            clock=SystemClock(),
            run_long=in_own_thread,
        )

    def _changed(self) -> None:
        self.changes += 1
        self.has_changed.set()

    async def ask(
        self, image: str = "lab/a:1", action: int = pb.IMAGE_ACTION_PULL, owner: str = "kim"
    ) -> resources.ImageStatus:
        self._answered.clear()
        order = pb.ImageOrder(order_id="1", action=action, image=image, owner_id=owner)  # type: ignore[arg-type]
        self.orders.obey(order)
        await self._answered.wait()
        (answer,) = self.orders.take_answers()
        assert self.orders.take_answers() == []
        return answer.status

    async def end(self, image: str = "lab/a:1") -> resources.ImageStatus:
        """How a pull stands once it does not go on."""
        while True:
            status = await self.ask(image, pb.IMAGE_ACTION_LOOK)
            if status.state != resources.IMAGE_STATE_PULLING:
                return status
            await asyncio.sleep(0.01)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
async def node(registry: Registry) -> AsyncIterator[Node]:
    node = Node(registry)
    async with node.orders:
        yield node


async def test_a_pull_is_begun_once_and_says_how_it_stands(registry: Registry, node: Node) -> None:
    assert (await node.ask(action=pb.IMAGE_ACTION_LOOK)).state == resources.IMAGE_STATE_ABSENT
    for _ in range(2):
        assert (await node.ask()).state == resources.IMAGE_STATE_PULLING
    await in_own_thread(registry.said.wait)
    status = await node.ask(action=pb.IMAGE_ACTION_LOOK)
    assert status.words == "1 of 2 layers, 3 of 4 MB"
    assert (await node.ask(action=pb.IMAGE_ACTION_LOOK, owner="lee")).words == ""
    registry.let_go.set()
    status = await node.end()
    assert (status.state, status.image) == (resources.IMAGE_STATE_PRESENT, "lab/a:1@sha256:1")
    assert (status.bytes, status.fetched, node.changes) == (7, True, 1)
    assert registry.fetched == [("kim", "lab/a:1")]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (EnvironmentFailed("image lab/a:1 cannot be pulled: limited"), "limited"),
        (EngineUnreachable("no engine answers"), "no engine answers"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("a secret"), "the agent failed"),
    ],
)
async def test_a_pull_that_fails_says_why_and_may_be_asked_for_again(
    registry: Registry, node: Node, error: Exception, words: str
) -> None:
    registry.fails = error
    registry.let_go.set()
    await node.ask()
    status = await node.end()
    assert status.state == resources.IMAGE_STATE_FAILED
    assert words in status.words
    assert "secret" not in status.words
    registry.fails = None
    await node.ask()
    assert (await node.end()).state == resources.IMAGE_STATE_PRESENT


async def test_nobody_has_more_pulls_than_their_part(node: Node) -> None:
    for image in ("lab/a:1", "lab/b:1"):
        assert (await node.ask(image)).state == resources.IMAGE_STATE_PULLING
    refused = await node.ask("lab/c:1")
    assert refused.state == resources.IMAGE_STATE_FAILED
    assert "2 images of yours already" in refused.words
    assert (await node.ask("lab/c:1", owner="lee")).state == resources.IMAGE_STATE_PULLING
    assert "pulls 3 images already" in (await node.ask("lab/d:1", owner="lee")).words


async def test_a_pull_that_nobody_asks_about_ends(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.image_orders._ABANDONED_AFTER_S", 0.05)
    monkeypatch.setattr("nodeagent.client_work._LOOK_EVERY_S", 0.01)
    node = Node(registry)
    async with node.orders:
        await node.ask()
        await node.has_changed.wait()
        assert "no client was waiting" in (await node.end()).words


async def test_a_removal_is_answered_with_what_came_of_it(registry: Registry, node: Node) -> None:
    for discarded, state in (
        ((True, "removed"), resources.IMAGE_STATE_REMOVED),
        ((True, ""), resources.IMAGE_STATE_ABSENT),
        ((False, "it is used"), resources.IMAGE_STATE_KEPT),
    ):
        registry.discarded = discarded
        assert (await node.ask(action=pb.IMAGE_ACTION_REMOVE)).state == state


async def test_an_agent_that_ends_ends_its_pulls(registry: Registry) -> None:
    node = Node(registry)
    async with node.orders:
        await node.ask()
        await in_own_thread(registry.said.wait)
    assert not registry.goes_on
