"""Configurations that programs report, through real gRPC: told by records, shown with the session, restored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig, platform
from tests.unit.controlplane.services.test_content import send
from tests.unit.controlplane.services.test_media import chunk
from tests.unit.controlplane.services.test_session_backups import (
    CODE_BLOBS,
    first,
    restore,
    rows,
    session,
)
from tests.unit.controlplane.services.test_sessions import Ingest, refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def told(values: Any, **fields: Any) -> bytes:
    record = {"kind": "config", "time": 1.0, "origin": "wandb", "values": values}
    return json.dumps({**record, **fields}).encode()


def read(config: pb.ReportedConfig) -> dict[tuple[str, str], Any]:
    return {(one.origin, one.run): json.loads(one.json) for one in config.runs}


async def test_a_session_has_it_and_lists_have_not(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    made = await kim.submit()
    await agent.assignments(1)
    whole = (await kim.sessions.GetSession(pb.GetSessionRequest(session=made.id))).session
    assert not whole.HasField("reported_config")
    records = (
        told({"lr": 0.1, "opt": {"name": "adam"}, 'key "\n': "\x07"}),
        told({"lr": "NaN"}, run="second", origin="mlflow"),
        b'{"kind":"metric","time":2,"values":{"loss":1},"summary":true,"origin":"wandb"}',
        told({"lr": 0.2}),
    )
    ingest = Ingest(agent.stubs)
    for _ in range(2):
        assert await ingest.send(chunk(made.id, 1, *records)) == [5]
    whole = (await kim.sessions.GetSession(pb.GetSessionRequest(session=made.id))).session
    assert read(whole.reported_config) == {
        ("mlflow", "second"): {"lr": "NaN"},
        ("wandb", ""): {'key "\\x0a': "\x07", "lr": 0.2, "opt": {"name": "adam"}},
    }
    assert not whole.reported_config.is_cut
    page = await kim.sessions.ListSessions(pb.ListSessionsRequest())
    assert [one.HasField("reported_config") for one in page.sessions] == [False]
    metrics = await kim.sessions.ListMetrics(pb.ListMetricsRequest(session=made.id))
    assert [(one.name, one.origin) for one in metrics.metrics] == [("loss", "wandb")]
    await ingest.send(chunk(made.id, 5, told({f"k{number}": 1 for number in range(5_000)})))
    whole = (await kim.sessions.GetSession(pb.GetSessionRequest(session=made.id))).session
    assert whole.reported_config.is_cut


async def test_a_backup_brings_it_back_and_nothing_in_it_is_believed(rig: Rig) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS)
    source = session()
    source.reported_config.is_cut = True
    values = {"lr": 0.1, "a\0b": "x\0y", "hub_token": "t", "n": {"m": [1]}}
    source.reported_config.runs.add(origin="wandb", json=json.dumps(values))
    source.reported_config.runs.add(origin="mlflow", run="r\x1b", json='{"a": 1}')
    made = (await restore(kim, first(source))).session
    assert read(made.reported_config) == {
        ("mlflow", "r\\x1b"): {"a": 1},
        ("wandb", ""): {"lr": 0.1, "a\\x00b": "x\ufffdy", "hub_token": "***", "n": {"m": [1]}},
    }
    assert made.reported_config.is_cut


@pytest.mark.parametrize(
    ("origin", "text", "code"),
    [
        ("W&B", "{}", "INVALID_ARGUMENT"),
        ("wandb", "[1]", "INVALID_ARGUMENT"),
        ("wandb", "[" * 9_999, "INVALID_ARGUMENT"),
        ("wandb", " " * 600_000, "INVALID_ARGUMENT"),
    ],
)
async def test_one_that_is_none_restores_nothing(
    rig: Rig, origin: str, text: str, code: str
) -> None:
    kim = await rig.user("kim")
    await send(kim, CODE_BLOBS)
    source = session()
    source.reported_config.runs.add(origin="wandb", json='{"lr": 1}')
    source.reported_config.runs.add(origin=origin, json=text)
    assert (await refused(restore(kim, first(source))))[0] == code
    assert await rows(rig) == {}
    many = session()
    for number in range(2_001):
        many.reported_config.runs.add(origin="wandb", run=str(number), json="{}")
    assert (await refused(restore(kim, first(many))))[0] == "RESOURCE_EXHAUSTED"
