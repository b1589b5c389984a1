"""What the preparation says of datasets that do not come, or are not to come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
from nodeagent.storage.in_place import InPlaceFolders
from nodeagent.streaming.endpoints import Variables
from nsml.client.errors import NotFound
from nsml.common.clock import in_thread
from nsml.content.in_place import LIST_NAME, encode, look_at
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions
from tests.support.scripted_platform import session_id

DIGESTS = {"fetched": "a" * 64, "big": "b" * 64}


class Trees:
    def __init__(self) -> None:
        self.apart: list[bool] = []

    async def get(self, digest: str, user: str = "", *, is_apart: bool = False) -> Path:
        del user
        self.apart.append(is_apart)
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


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A dataset in place at top/data, whose list is the tree list/."""
    folder = tmp_path.resolve() / "top" / "data"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_text(name)
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / LIST_NAME).write_bytes(encode(look_at(folder)))
    return folder


def in_place(shared: Path, roots: Sequence[Path]) -> tuple[DataHook, Draft]:
    class Lists(Trees):
        async def get(self, digest: str, user: str = "", *, is_apart: bool = False) -> Path:
            del digest, user
            return shared.parents[1] / "list"

    hook = DataHook(
        cast("Any", Lists()),
        None,
        in_thread,
        InPlaceFolders([str(one) for one in roots], in_thread),
    )
    made = draft(streams=True)
    del made.assignment.spec.datasets[1:]
    made.assignment.spec.datasets[0].in_place = str(shared)
    made.assignment.spec.datasets[0].version = 3
    return hook, made


async def test_a_dataset_in_place_is_mounted_while_it_is_what_it_was(shared: Path) -> None:
    hook, made = in_place(shared, [shared.parent])
    await hook.prepare(made)
    assert [(one.source, one.target) for one in made.mounts] == [(shared, "/data/fetched")]
    (shared / "b").unlink()
    hook, made = in_place(shared, [shared.parent])
    with pytest.raises(PreparationFailed, match=r"fetched@3, in place .* b is missing") as failed:
        await hook.prepare(made)
    assert failed.value.cause == sessions.CAUSE_START_FAILED, "no further attempt differs"
    made.assignment.spec.allow_changed_data = True
    await hook.prepare(made)
    assert [one.source for one in made.mounts] == [shared]
    assert "b is missing" in made.log[0]


async def test_datasets_in_place_are_looked_at_one_at_a_time(shared: Path) -> None:
    begun, may_end = [], asyncio.Event()

    async def run(work: Callable[[], object]) -> object:
        begun.append(work)
        await may_end.wait()
        return work()

    folders = InPlaceFolders([str(shared.parent)], cast("Any", run))
    async with asyncio.TaskGroup() as group:
        looks = [
            group.create_task(folders.look(str(shared), shared.parents[1] / "list"))
            for _ in range(3)
        ]
        for _ in range(10):  # all three have come as far as they can
            await asyncio.sleep(0)
        assert len(begun) == 1
        may_end.set()
    assert [one.result().count for one in looks] == [0, 0, 0]
    assert len(begun) == 3


@pytest.mark.parametrize(
    ("roots", "mode", "said"),
    [
        ([], 0o755, "not below the shared_roots"),
        (["/elsewhere"], 0o755, "not below the shared_roots"),
        (["/"], 0o777, "others can write to"),
    ],
)
async def test_a_folder_that_this_node_does_not_share_or_others_can_exchange_is_not_mounted(
    shared: Path, roots: list[str], mode: int, said: str
) -> None:
    hook, made = in_place(shared, [Path(one) for one in roots])
    made.assignment.spec.allow_changed_data = True
    shared.parent.chmod(mode)
    with pytest.raises(PreparationFailed, match=said) as failed:
        await hook.prepare(made)
    assert failed.value.cause == sessions.CAUSE_NODE_REFUSED
    assert made.mounts == []
