"""What an agent says that it has: sessions come to their data, and whatever is said nobody is hurt."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.values import Stock
from controlplane.nodes.convert_agents import MOST_STOCKED, to_stock
from nsml.content.digests import digest_of
from nsml.v1 import agents_pb2, nodes_pb2, resources_pb2
from tests.unit.controlplane.rig import Agent, Rig, platform, until

DATA = digest_of(b"data")


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def thing(**facts: Any) -> agents_pb2.StockedThing:
    return agents_pb2.StockedThing(**{"bytes": 7, **facts})


async def says(agent: Agent, *things: agents_pb2.StockedThing, bytes_per_second: int = 0) -> None:
    report = agents_pb2.StockReport(things=things, bytes_per_second=bytes_per_second)
    await agent.say(agents_pb2.ControlRequest(stock=report))


async def known(rig: Rig, node: str, stock: Stock | None) -> None:
    async def is_known() -> bool:
        return rig.plane.core.state.stocks.get(node) == stock

    await until(is_known, f"{node} has {stock}")


async def test_a_session_is_placed_where_its_image_is_and_that_is_said(rig: Rig) -> None:
    kim = await rig.user("kim")
    runs = {"isolation": resources_pb2.ISOLATION_CONTAINER}
    agents = [await (await rig.agent(name, **runs)).connect() for name in "ab"]
    await says(agents[1], thing(image="lab/torch"), bytes_per_second=5)
    await known(rig, "b", Stock(things={"lab/torch:latest": 7}, bytes_per_s=5.0))
    one = await kim.submit(image="lab/torch")
    (held,) = await agents[1].assignments(1)
    assert held.replica.session_id == one.id
    images = (await kim.nodes.GetNode(nodes_pb2.GetNodeRequest(name="b"))).images
    assert [(image.name, image.bytes) for image in images] == [("lab/torch:latest", 7)]
    (replica,) = (await kim.get(one.id)).replicas
    assert (replica.node, replica.near_data) == ("b", True)
    both = resources_pb2.Resources(gpu_thousandths=2000)
    await kim.submit(image="lab/other", resources=both)
    (other,) = await agents[0].assignments(1)
    (replica,) = (await kim.get(other.replica.session_id)).replicas
    assert not replica.near_data


async def test_it_costs_the_store_nothing(rig: Rig) -> None:
    agent = await (await rig.agent("a")).connect()
    before = (await rig.on.store.list("")).items
    await says(agent, thing(dataset_digest=DATA))
    await known(rig, "a", Stock(things={DATA: 7}))
    assert (await rig.on.store.list("")).items == before


async def test_it_is_known_as_long_as_the_stream_lasts(rig: Rig) -> None:
    first = await (await rig.agent("a")).connect()
    await says(first, thing(dataset_digest=DATA))
    await known(rig, "a", Stock(things={DATA: 7}))
    second = await (await rig.agent("a")).connect()
    await known(rig, "a", None)
    await says(second, thing(dataset_digest=DATA, bytes=9))
    await known(rig, "a", Stock(things={DATA: 9}))
    await second.close()
    await known(rig, "a", None)


async def test_another_stream_than_the_newest_says_nothing(rig: Rig) -> None:
    await (await rig.agent("a")).connect()
    older = rig.plane.core.contacts.link("a")
    assert older is not None
    newer = await (await rig.agent("a")).connect()
    rig.plane.core.contacts.stocks(older, Stock(things={DATA: 1}))
    assert not rig.plane.core.state.stocks
    await newer.close()
    rig.plane.core.contacts.disconnect(older)
    rig.plane.core.contacts.stocks(older, Stock(things={DATA: 1}))
    assert not rig.plane.core.state.stocks


@pytest.mark.parametrize(
    "things",
    [
        [thing(dataset_digest="../../etc")],
        [thing(dataset_digest=DATA.upper())],
        [thing(image="no image")],
        [thing(image=DATA)],
        [thing()],
        [thing(dataset_digest=digest_of(bytes([i // 256, i % 256]))) for i in range(257)],
    ],
)
async def test_what_cannot_be_is_refused(rig: Rig, things: list[agents_pb2.StockedThing]) -> None:
    agent = await (await rig.agent("a")).connect()
    await says(agent, *things)

    async def is_refused() -> bool:
        return agent.error is not None

    await until(is_refused, "it is refused")
    assert agent.error is not None
    assert agent.error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not rig.plane.core.state.stocks


def test_the_largest_numbers_are_only_numbers() -> None:
    most = 2**64 - 1
    report = agents_pb2.StockReport(
        things=[thing(dataset_digest=DATA, bytes=most)], bytes_per_second=most
    )
    assert to_stock(report) == Stock(things={DATA: most}, bytes_per_s=float(most))
    many = [thing(image=f"lab/i{number}") for number in range(MOST_STOCKED)]
    assert len(to_stock(agents_pb2.StockReport(things=many)).things) == MOST_STOCKED
    with pytest.raises(InvalidRequest, match="at most 256"):
        to_stock(agents_pb2.StockReport(things=[*many, thing(image="one/more")]))
