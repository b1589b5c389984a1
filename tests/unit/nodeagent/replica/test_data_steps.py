"""What the preparation says of datasets that do not come, or are not to come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from nodeagent.replica.preparation_steps import (
    DataHook,
    Draft,
    PreparationFailed,
    StreamHook,
)
from nodeagent.storage.eviction import NoRoom
from nodeagent.streaming.endpoints import Variables
from nsml.client.errors import NotFound
from nsml.common.clock import in_thread
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions
from tests.support.scripted_platform import session_id

DIGESTS = {"fetched": "a" * 64, "big": "b" * 64}


class Trees:
    async def get(self, digest: str, user: str = "") -> Path:
        del user
        if digest == DIGESTS["big"]:
            raise NoRoom("no room for 9.0 TB")
        return Path("/cache") / digest


class Endpoints:
    def __init__(self, note: str = "", error: Exception | None = None) -> None:
        self._note, self._error = note, error

    async def prepare(self, spec: sessions.SessionSpec) -> None:
        del spec
        if self._error is not None:
            raise self._error

    def variables(self, *_: object) -> Variables:
        return Variables(plain={}, secret={"KEY": "s3cret"}, urls=("URL",), note=self._note)


class Log(list[str]):
    note = list.append


def draft(*, streams: bool) -> Draft:
    assignment = pb.Assignment(
        replica=pb.ReplicaId(session_id=session_id(1), attempt=1),
        owner="kim",
        spec=sessions.SessionSpec(
            datasets=[
                sessions.DatasetReference(name="fetched", digest=DIGESTS["fetched"]),
                sessions.DatasetReference(name="lab/big", digest=DIGESTS["big"], streamed=streams),
            ]
        ),
    )
    return Draft(assignment, cast("Any", None), cast("Any", Log()))


async def test_what_does_not_fit_is_told_with_the_way_that_needs_no_room() -> None:
    hook = DataHook(cast("Any", Trees()), None, in_thread)
    with pytest.raises(PreparationFailed, match=r"no room for 9\.0 TB; nsml run --stream lab/big"):
        await hook.prepare(draft(streams=False))


async def test_what_is_streamed_is_not_fetched_and_not_mounted() -> None:
    made = draft(streams=True)
    await DataHook(cast("Any", Trees()), None, in_thread).prepare(made)
    assert [mount.target for mount in made.mounts] == ["/data/fetched"]
    hook = StreamHook(cast("Any", Endpoints("AWS_PROFILE is set")), in_thread)
    assert hook.applies(made.assignment.spec)
    await hook.prepare(made)
    assert made.log == ["note: AWS_PROFILE is set"]
    assert "s3cret" not in repr(made)


async def test_a_list_of_files_that_does_not_come_ends_the_attempt() -> None:
    hook = StreamHook(cast("Any", Endpoints(error=NotFound("no such version"))), in_thread)
    with pytest.raises(PreparationFailed, match="cannot be read: no such version"):
        await hook.prepare(draft(streams=True))
    assert not hook.applies(draft(streams=False).assignment.spec)
