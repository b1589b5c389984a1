"""What an agent tells that is here: bounded, only news, and known again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.nodes.convert_agents import to_stock
from nodeagent.storage.cached_content import MOST_TOLD, Stock
from nodeagent.storage.datasets import Trees
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from tests.support.scripted_platform import ScriptedPlatform
from tests.unit.nodeagent.storage.test_datasets import FILES, offer

MIB = 1 << 20
DIGESTS = [digest_of(bytes([i // 256, i % 256])) for i in range(MOST_TOLD + 50)]

IMAGES = [f"lab/i{number}:{number}" for number in range(5)]


class Told:
    """How often there was something to tell."""

    def __init__(self) -> None:
        self.times = 0
        self.stock = Stock(self.note)

    def note(self) -> None:
        self.times += 1

    @property
    def datasets(self) -> dict[str, int]:
        things = self.stock.message.things
        return {one.dataset_digest: one.bytes for one in things if one.dataset_digest}

    @property
    def images(self) -> dict[str, int]:
        return {one.image: one.bytes for one in self.stock.message.things if one.image}


def test_only_news_is_told() -> None:
    told = Told()
    told.stock.has_images({})
    told.stock.used(DIGESTS[0])
    assert told.times == 0
    told.stock.used(DIGESTS[0], 5)
    told.stock.used(DIGESTS[0])
    told.stock.used(DIGESTS[0], 5)
    assert (told.times, told.datasets) == (1, {DIGESTS[0]: 5})
    told.stock.has_images({"a:1": 3})
    told.stock.has_images({"a:1": 3})
    assert (told.times, told.images) == (2, {"a:1": 3})
    told.stock.has_images({})
    assert (told.times, told.images) == (3, {})


def test_of_too_many_those_used_last_are_told() -> None:
    told = Told()
    told.stock.found([(digest, 1) for digest in DIGESTS])
    assert set(told.datasets) == set(DIGESTS[-MOST_TOLD:])
    told.stock.used(DIGESTS[0])
    assert set(told.datasets) == {DIGESTS[0], *DIGESTS[-MOST_TOLD + 1 :]}
    told.stock.has_images({f"i:{number}": number for number in range(500)})
    assert len(told.stock.message.things) == MOST_TOLD
    assert min(told.images.values()) == 500 - len(told.images) > 0
    assert len(told.datasets) > MOST_TOLD / 2


def test_what_is_found_late_does_not_push_out_what_was_used_since() -> None:
    told = Told()
    told.stock.used(DIGESTS[0], 8)
    told.stock.found([(digest, 1) for digest in DIGESTS])
    assert told.datasets[DIGESTS[0]] == 8


def test_the_bandwidth_is_a_mean_of_what_is_large_enough_to_tell() -> None:
    told = Told()
    told.stock.used(DIGESTS[0], 1)

    def rate() -> int:
        told.stock.has_images({f"i:{told.times}": 1})
        return told.stock.message.bytes_per_second

    assert rate() == 0
    told.stock.fetched(MIB - 1, 1.0)
    told.stock.fetched(MIB, 0.0)
    assert rate() == 0
    told.stock.fetched(100 * MIB, 1.0)
    assert rate() == 100_000_000
    told.stock.fetched(10 * MIB, 1.0)
    assert rate() == 77_000_000
    for _ in range(50):
        told.stock.fetched(10 * MIB, 1.0)
    assert rate() == 10_000_000


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(DIGESTS), st.integers(-1, 2**70)),
            st.dictionaries(st.sampled_from(IMAGES), st.integers(-1, 2**70)),
            st.tuples(st.integers(0, 2**40), st.floats(-1, 1e9)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_the_control_plane_can_take_it(steps: list) -> None:
    stock = Stock()
    for step in steps:
        if isinstance(step, dict):
            stock.has_images(step)
        elif isinstance(step[0], str):
            stock.used(*step)
        else:
            stock.fetched(*step)
        told = to_stock(stock.message)
        assert len(told.things) == len(stock.message.things) <= MOST_TOLD
        assert 0 <= told.bytes_per_s < 1e20


@pytest.fixture
async def rpc() -> AsyncIterator[tuple[Rpc, ScriptedPlatform]]:
    platform = ScriptedPlatform(patience_s=30)
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Rpc(channel), platform
    await server.stop(None)


async def test_what_was_fetched_is_told_also_by_the_next_agent(
    rpc: tuple[Rpc, ScriptedPlatform], tmp_path: Path
) -> None:
    connection, platform = rpc
    digest = offer(platform, tmp_path / "pushed")
    size = sum(len(text) for text in FILES.values())

    async def pause() -> None:
        await asyncio.sleep(0.01)

    def agent() -> tuple[Told, Trees]:
        told = Told()
        place = tmp_path / "datasets"
        trees = Trees(place, rpc=lambda: connection, run=in_thread, pause=pause, stock=told.stock)
        trees.create()
        return told, trees

    told, trees = agent()
    told.stock.found(trees.cache.left())
    assert told.datasets == {}
    await trees.get(digest)
    assert told.datasets == {digest: size}
    await trees.fetch(digest, tmp_path / "own")
    assert told.times == 1
    again, trees = agent()
    again.stock.found(trees.cache.left())
    assert again.datasets == {digest: size}
    # What only the notes tell of is not here.
    (tmp_path / "datasets" / digest).rename(tmp_path / "gone")
    (tmp_path / "datasets" / f"{DIGESTS[0]}.bytes").write_text("12")
    (tmp_path / "datasets" / f"{DIGESTS[1]}.bytes").write_text("many")
    (tmp_path / "datasets" / DIGESTS[1]).mkdir()
    last, trees = agent()
    last.stock.found(trees.cache.left())
    assert last.datasets == {}
