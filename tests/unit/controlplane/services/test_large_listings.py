"""Answers that no single message holds: many or long things keep nobody from reading."""

from __future__ import annotations

import json

import pytest

from controlplane.domain.identity import Role
from controlplane.domain.values import Device, Node, Resources, Visibility
from controlplane.history.values import Channel, Chunk, Dataset, StreamKey
from controlplane.store.interface import Put, Transaction
from controlplane.stored import etcd_codec
from nsml.client.calls import Client
from nsml.client.errors import InvalidRequest
from nsml.client.streams import read_metrics
from nsml.v1 import datasets_pb2, nodes_pb2
from tests.unit.controlplane.rig import Rig, platform, until

ONE_MESSAGE = 4 << 20
COUNT = 1_100
LONG = 4_096


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def client_of(rig: Rig, name: str, role: Role = Role.MEMBER) -> Client:
    user = await rig.user(name, role=role)
    [(_, value)] = user.metadata
    return Client(await rig.channel(), token=value.removeprefix("Bearer "))


async def test_datasets_with_long_messages_are_all_listed(rig: Rig) -> None:
    kim = await client_of(rig, "kim")
    for number in range(COUNT):
        await rig.on.history.catalogue.put_dataset_version(
            Dataset(
                owner="lee", name=f"d{number:04}", created_at=1.0, visibility=Visibility.PUBLIC
            ),
            digest="0" * 64,
            size_bytes=1,
            file_count=1,
            message="m" * LONG,
        )
    found = await kim.datasets.every()
    assert [one.name for one in found] == [f"d{number:04}" for number in range(COUNT)]
    assert sum(one.ByteSize() for one in found) > ONE_MESSAGE
    request = datasets_pb2.ListDatasetsRequest(cursor="none of ours")
    with pytest.raises(InvalidRequest):
        await kim.rpc.unary(
            "DatasetService/ListDatasets", request, datasets_pb2.ListDatasetsResponse
        )


async def test_many_nodes_are_all_listed(rig: Rig) -> None:
    kim = await client_of(rig, "kim")
    nodes = [
        Node(
            name=f"n{number:04}",
            boot_id="b",
            capacity=Resources(gpu_thousandths=8_000),
            devices=tuple(Device(uuid=f"GPU-{number}-{one}", index=one) for one in range(8)),
            device_note="w" * LONG,
        )
        for number in range(COUNT)
    ]
    for start in range(0, COUNT, 100):
        puts = [
            Put(key=etcd_codec.node_key(one.name), value=etcd_codec.encode_node(one))
            for one in nodes[start : start + 100]
        ]
        await rig.on.store.commit(Transaction(success=tuple(puts)))

    async def are_known() -> bool:
        return len(rig.plane.core.state.nodes) == COUNT

    await until(are_known, "all are known")
    found = await kim.nodes.every()
    assert [one.name for one in found] == [one.name for one in nodes]
    assert sum(one.ByteSize() for one in found) > ONE_MESSAGE
    request = nodes_pb2.ListNodesRequest(cursor="none of ours")
    with pytest.raises(InvalidRequest):
        await kim.rpc.unary("NodeService/ListNodes", request, nodes_pb2.ListNodesResponse)


@pytest.mark.parametrize("chunk_of", [1, 50])
async def test_long_values_are_all_read(rig: Rig, chunk_of: int) -> None:
    session = await (await rig.user("lee")).submit()
    kim = await client_of(rig, "kim", role=Role.ADMIN)
    key = StreamKey(session.id, 1, 0, Channel.METRIC, 0)
    values = [f"{number:04}" + "v" * (60 << 10) for number in range(200)]
    written = [
        json.dumps({"kind": "metric", "time": 1, "values": {"text": value}}).encode()
        for value in values
    ]
    for start in range(0, len(written), chunk_of):
        some = tuple(written[start : start + chunk_of])
        chunk = Chunk(stream=key, first=start + 1, last=start + len(some), records=some)
        await rig.on.history.streams.append([chunk])
    read = [
        json.loads(point.json)
        async for answer in read_metrics(kim, session.id)
        for point in answer.points
    ]
    assert read == values


async def test_many_metrics_with_long_names_are_all_listed(rig: Rig) -> None:
    session = await (await rig.user("lee")).submit()
    kim = await client_of(rig, "kim", role=Role.ADMIN)
    key = StreamKey(session.id, 1, 0, Channel.METRIC, 0)
    names = [f"{number:05}" + "\N{SNOWMAN}" * 507 for number in range(10_000)]
    reports = tuple(
        json.dumps({"kind": "metric", "time": 1, "values": dict.fromkeys(some, 1)}).encode()
        for some in (names[start : start + 20] for start in range(0, len(names), 20))
    )
    chunk = Chunk(stream=key, first=1, last=len(reports), records=reports)
    await rig.on.history.streams.append([chunk])
    found = await kim.sessions.metrics(session.id)
    assert [(one.name, one.count) for one in found] == [(name, 1) for name in names]
    assert sum(one.ByteSize() for one in found) > ONE_MESSAGE
