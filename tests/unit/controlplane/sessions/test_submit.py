"""Submission: each request once, numbered without gaps of ours, refused when it must be."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from controlplane.access.vault import make_vault
from controlplane.checkpoints.checkpoints import Checkpoints
from controlplane.content.content import Content, Part
from controlplane.core.compare_and_swap import SessionWriter
from controlplane.datasets.datasets import Datasets
from controlplane.datasets.references import DatasetReference
from controlplane.domain.errors import (
    AlreadyExists,
    CannotEverFit,
    InvalidRequest,
    MissingBlobs,
    NoCapacity,
    NotFound,
    NotLeader,
    NsmlError,
    TooLarge,
    Unavailable,
)
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    Isolation,
    Limits,
    Project,
    Resources,
    SessionSpec,
    Visibility,
)
from controlplane.environments.locks import EnvironmentLocks
from controlplane.history.sqlite import open_history
from controlplane.history.values import Dataset
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.secrets.user_secrets import UserSecrets
from controlplane.sessions.competition_teams import CompetitionTeams
from controlplane.sessions.export import row_of
from controlplane.sessions.submit import Submitter
from controlplane.sessions.validation import Submission
from controlplane.state.references import References
from controlplane.state.replica_rights import Rights
from controlplane.store import interface
from controlplane.store.interface import Delete, Put, Transaction
from controlplane.stored import etcd_codec
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from nsml.spec.request_limits import LEAST_DISK_BYTES
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.builders import held, new_id, node
from tests.unit.controlplane.workbench import Bench, bench

KIM = User(name="kim")
ONE_GPU = Resources(gpu_thousandths=1000)


def wish(request_id: str = "r1", **facts: Any) -> Submission:
    facts.setdefault("argv", ("true",))
    facts.setdefault("digest", b"content")
    facts.setdefault("owner", KIM)
    own = {one.name for one in fields(Submission)}
    asked = {name: facts.pop(name) for name in [*facts] if name not in own}
    return Submission(request_id=request_id, spec=SessionSpec(**asked), **facts)


@dataclass
class Desk:
    made: Bench
    history: Any
    objects: MemoryObjects
    leads: bool = True

    async def submitter(self) -> Submitter:
        state = await self.made.member()
        content = Content(
            objects=self.objects, history=self.history, state=state, clock=self.made.clock
        )
        references = References(state=state, history=self.history)
        rights = Rights(references=references, state=state)
        checkpoints = Checkpoints(
            history=self.history,
            content=content,
            rights=rights,
            writer=SessionWriter(store=self.made.store, state=state),
            clock=self.made.clock,
        )
        submitter = Submitter(
            store=self.made.store,
            state=state,
            history=self.history,
            checkpoints=checkpoints,
            locks=EnvironmentLocks(history=self.history, rights=rights, run=inline),
            datasets=Datasets(history=self.history, content=content, clock=self.made.clock),
            content=content,
            references=references,
            teams=CompetitionTeams(state=state, history=self.history),
            secrets=UserSecrets(self.made.store, make_vault(os.urandom), clock=self.made.clock),
            clock=self.made.clock,
            new_id=new_id,
            answers=lambda: (
                QueueQueries(ClusterIndex.of(state.everything())) if self.leads else None
            ),
        )
        submitter.state = state
        submitter.content = content
        self.made.tasks.append(self.made.group.create_task(submitter.run()))
        return submitter

    async def sessions(self) -> list[str]:
        return sorted(item.key for item in (await self.made.store.list("name/")).items)


@contextlib.asynccontextmanager
async def desk():
    async with bench() as made:
        history = await open_history(":memory:", clock=made.clock, run=inline)
        yield Desk(made, history, MemoryObjects(made.clock))
        await history.close()


async def test_a_repeated_request_gives_the_same_session() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        first = await submitter.submit(wish())
        assert first.name == "kim/None/1"
        assert await submitter.submit(wish()) == first
        other = await at.submitter()
        assert await other.submit(wish()) == first
        both = await asyncio.gather(*[submitter.submit(wish("r2")) for _ in range(5)])
        assert {one.name for one in both} == {"kim/None/2"}
        assert await at.sessions() == ["name/kim/None/1", "name/kim/None/2"]


async def test_who_is_removed_while_a_submission_is_written_submits_nothing() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        vision = Project(name="vision", owner="lee", members=frozenset({"kim", "lee"}))
        await at.made.store._store.commit(Transaction(success=(project_put(vision),)))
        await at.made.settled(submitter.state)
        commit = submitter._commit

        async def removed_first(*given: Any) -> bool:
            without = replace(vision, members=frozenset({"lee"}))
            await at.made.store._store.commit(Transaction(success=(project_put(without),)))
            return await commit(*given)

        submitter._commit = removed_first
        with pytest.raises(NotFound, match="of which you are a member"):
            await submitter.submit(wish(project="vision"))
        assert not await at.sessions()


def project_put(project: Project) -> Put:
    return Put(key=etcd_codec.project_key(project.name), value=etcd_codec.encode_project(project))


async def test_a_request_of_an_exported_session_gives_it() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        first = await submitter.submit(wish())
        ended = replace(first, state=SessionState.SUCCEEDED, ended_at=5.0)
        await at.history.catalogue.put_session(row_of(ended), term=1)
        keys = [f"session/{first.id}", "name/kim/None/1", "request/kim/r1"]
        deletions = tuple(Delete(key=key) for key in keys)
        await at.made.store.commit(Transaction(success=deletions))
        await at.made.settled(submitter.state)
        assert await submitter.submit(wish()) == ended
        with pytest.raises(AlreadyExists):
            await submitter.submit(wish(digest=b"other"))


async def test_a_request_whose_session_came_and_left_meanwhile_makes_no_other() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        checking, go_on = asyncio.Event(), asyncio.Event()
        check = submitter._check_content

        async def held_up(*given: Any) -> None:
            checking.set()
            await go_on.wait()
            await check(*given)

        submitter._check_content = held_up
        repeated = asyncio.create_task(submitter.submit(wish()))
        await checking.wait()
        submitter._check_content = check
        first = await submitter.submit(wish())
        ended = replace(first, state=SessionState.SUCCEEDED, ended_at=5.0)
        await at.history.catalogue.put_session(row_of(ended), term=1)
        keys = [f"session/{first.id}", "name/kim/None/1", "request/kim/r1"]
        deletions = tuple(Delete(key=key) for key in keys)
        await at.made.store.commit(Transaction(success=deletions))
        await at.made.settled(submitter.state)
        go_on.set()
        assert await repeated == ended
        assert not await at.sessions()


async def test_one_request_at_two_members_makes_one_session() -> None:
    async with desk() as at:
        one, two = await at.submitter(), await at.submitter()
        dataset = Dataset(owner="kim", name="digits", created_at=1.0)
        await at.history.catalogue.put_dataset_version(
            dataset, digest="0" * 64, size_bytes=7, file_count=1
        )
        wishes = [
            wish("r1", datasets=(DatasetReference(name="digits"),)),
            wish("r1", digest=b"other"),
        ]
        outcomes = await asyncio.gather(
            one.submit(wishes[0]), two.submit(wishes[1]), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in outcomes) == ["AlreadyExists", "Session"]
        assert len(await at.sessions()) == 1


async def test_the_same_request_with_another_content_is_refused() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await submitter.submit(wish())
        with pytest.raises(AlreadyExists):
            await submitter.submit(wish(digest=b"other"))
        outcomes = await asyncio.gather(
            submitter.submit(wish("r2", digest=b"one")),
            submitter.submit(wish("r2", digest=b"two")),
            return_exceptions=True,
        )
        assert [isinstance(one, AlreadyExists) for one in outcomes].count(True) == 1


async def test_two_members_number_without_doubles_or_gaps() -> None:
    async with desk() as at:
        one, two = await at.submitter(), await at.submitter()
        sessions = await asyncio.gather(
            *[(one, two)[i % 2].submit(wish(f"r{i}")) for i in range(40)]
        )
        assert sorted(int(s.name.split("/")[2]) for s in sessions) == list(range(1, 41))
        assert len({session.id for session in sessions}) == 40


async def test_users_and_datasets_count_apart() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        lee = wish("r1", owner=User(name="lee"))
        assert (await submitter.submit(wish())).name == "kim/None/1"
        assert (await submitter.submit(lee)).name == "lee/None/1"


@pytest.mark.parametrize("fault", ["lost before", "lost after", "down"])
async def test_a_lost_answer_is_repeated_by_the_caller(fault: str) -> None:
    async with desk() as at:
        submitter = await at.submitter()
        at.made.store.faults = [fault]
        with pytest.raises(Unavailable):
            await submitter.submit(wish())
        session = await submitter.submit(wish())
        assert session.name == "kim/None/1"
        assert await at.sessions() == ["name/kim/None/1"]


async def test_datasets_are_resolved_and_name_the_session() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        data = b"numbers"
        entry = Entry(path="x", mode=0o644, size=7, chunks=(ChunkRef(digest_of(data), len(data)),))
        manifest = build([entry])
        dataset = Dataset(owner="lee", name="digits", created_at=1.0)
        await at.history.catalogue.put_dataset_version(
            dataset, digest=manifest.digest, size_bytes=7, file_count=1
        )
        wanted = wish(datasets=(DatasetReference(name="digits", owner="lee"),))
        with pytest.raises(NotFound):
            await submitter.check(wanted)
        with pytest.raises(NotFound):
            await submitter.submit(wanted)
        mine = replace(dataset, owner="kim")
        await at.history.catalogue.put_dataset_version(
            mine, digest=manifest.digest, size_bytes=7, file_count=1
        )
        session = await submitter.submit(wish(datasets=(DatasetReference(name="digits"),)))
        assert session.name == "kim/digits/1"
        assert session.spec.datasets[0].digest == manifest.digest
        with pytest.raises(NotFound):
            await submitter.submit(
                wish("r2", datasets=(DatasetReference(name="digits", version=2),))
            )


async def test_code_must_have_been_sent() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        code = b"print()"
        entry = Entry(path="main.py", mode=0o644, size=7, chunks=(ChunkRef(digest_of(code), 7),))
        manifest = build([entry])
        wanted = wish(argv=(), bundle_digest=manifest.digest)
        await submitter.check(wanted)
        assert not await at.sessions()
        with pytest.raises(MissingBlobs):
            await submitter.submit(wanted)
        kim = UserCaller(user=wanted.owner)
        await send(submitter.content, kim, manifest.encode())
        with pytest.raises(MissingBlobs):
            await submitter.submit(wanted)
        await send(submitter.content, kim, code)
        other = replace(wanted, owner=User(name="lee"))
        with pytest.raises(MissingBlobs):
            await submitter.submit(other)
        assert (await submitter.submit(wanted)).spec.entry == "main.py"


@pytest.mark.parametrize("files", [1, 300])
async def test_code_that_takes_more_than_the_session_may_is_refused(files: int) -> None:
    async with desk() as at:
        submitter = await at.submitter()
        chunk = b"x" * (LEAST_DISK_BYTES - 1) if files == 1 else b"x"
        # The same chunk again and again: sent once, laid out each time.
        refs = (ChunkRef(digest_of(chunk), len(chunk)),) * (2 if files == 1 else 1)
        size = sum(ref.size for ref in refs)
        manifest = build(
            [Entry(path=f"f{n}", mode=0o644, size=size, chunks=refs) for n in range(files)]
        )
        wanted = wish(
            argv=(),
            entry="f0",
            bundle_digest=manifest.digest,
            limits=Limits(disk_bytes=LEAST_DISK_BYTES),
        )
        kim = UserCaller(user=wanted.owner)
        await send(submitter.content, kim, manifest.encode())
        await send(submitter.content, kim, chunk)
        with pytest.raises(InvalidRequest, match="takes"):
            await submitter.submit(wanted)
        less = Limits(disk_bytes=4 * LEAST_DISK_BYTES)
        more = replace(wanted, spec=replace(wanted.spec, limits=less))
        assert await submitter.submit(more)


async def send(content: Content, who: UserCaller, blob: bytes) -> None:
    async def parts() -> AsyncIterator[Part]:
        yield digest_of(blob), blob, True

    await content.put(who, parts())


async def test_what_can_never_fit_is_refused_once_there_are_nodes() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        nine = wish(resources=Resources(gpu_thousandths=9000))
        await submitter.submit(nine)
        await at.made.write(node("a"))
        await at.made.settled(submitter.state)
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(replace(nine, request_id="r2"))
        assert "9 GPUs" in refused.value.message
        assert refused.value.why == "no node has 9 GPUs; the largest has 2 (node a)"
        assert refused.value.attempt == "nsml run -g 2 ...\nnsml node ls"
        with pytest.raises(CannotEverFit):
            await submitter.check(replace(nine, request_id="r2"))


async def test_what_could_be_placed_follows_the_nodes_as_they_come_and_go() -> None:
    async with desk() as at:
        submitter = await at.submitter()

        async def largest() -> str:
            await at.made.settled(submitter.state)
            with pytest.raises(CannotEverFit) as refused:
                await submitter.check(wish(resources=Resources(gpu_thousandths=99_000)))
            return refused.value.attempt.splitlines()[0]

        await at.made.write(node("a", 2))
        assert await largest() == "nsml run -g 2 ..."
        await at.made.write(node("b", 8))
        assert await largest() == "nsml run -g 8 ..."
        await at.made.write(node("b", 4))
        assert await largest() == "nsml run -g 4 ..."
        await at.made.store.commit(Transaction(success=(Delete(key="node/b"),)))
        assert await largest() == "nsml run -g 2 ..."


async def test_unknown_models_and_pods_are_refused_with_those_that_are_there() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        facts = {"request_id": "r1", "resources": ONE_GPU}
        await submitter.submit(wish(**facts, gpu_model="H100", pod="p9"))
        await at.made.write(node("a", model="NVIDIA A100-SXM4-80GB", pod="p1"))
        await at.made.settled(submitter.state)
        facts["request_id"] = "r2"
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish(**facts, gpu_model="H100"))
        assert refused.value.why == (
            "no node has GPU model H100; there are: NVIDIA A100-SXM4-80GB (1 node)"
        )
        assert refused.value.attempt.startswith("nsml run --gpu-model A100-SXM4-80GB ...\n")
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish(**facts, pod="p2"))
        assert refused.value.why == "there is no pod p2; there are: p1 (1 node)"
        assert refused.value.attempt.startswith("nsml run --pod p1 ...\n")
        made = await submitter.submit(wish(**facts, gpu_model="a100_80gb", pod="p1"))
        assert (made.spec.gpu_model, made.spec.pod) == ("a100_80gb", "p1")
        assert await at.sessions() == ["name/kim/None/1", "name/kim/None/2"]


async def test_packages_of_conda_need_a_node_that_installs_them() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await at.made.write(node("a"))
        await at.made.settled(submitter.state)
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish("r1", needs_conda=True))
        assert refused.value.why.startswith("no node has micromamba, ")
        assert refused.value.attempt.startswith("list the packages in requirements.txt\n")
        assert await submitter.submit(wish("r2"))
        await at.made.write(node("b", abilities=("CONDA",)))
        await at.made.settled(submitter.state)
        assert (await submitter.submit(wish("r3", needs_conda=True))).spec.needs_conda


async def test_datasets_larger_than_every_nodes_disk_are_refused_with_the_way_out() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await at.made.write(node("a", data_bytes=10**9), node("b", data_bytes=2 * 10**9))
        await at.made.settled(submitter.state)
        await at.history.catalogue.put_dataset_version(
            Dataset(owner="kim", name="large", created_at=1.0),
            digest="a" * 64,
            size_bytes=3 * 10**9,
            file_count=1,
        )
        whole = DatasetReference(name="large")
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish("r1", datasets=(whole,)))
        assert refused.value.why == (
            "they take 3.0 GB, and no node's disk has more than 2.0 GB for datasets"
        )
        assert refused.value.attempt.startswith("nsml run --stream NAME ...")
        made = await submitter.submit(wish("r2", datasets=(replace(whole, streamed=True),)))
        assert made.spec.datasets[0].size_bytes == 3 * 10**9


async def test_an_image_needs_a_node_that_runs_containers() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await at.made.write(node("a"))
        await at.made.settled(submitter.state)
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish("r1", image="torch:2"))
        assert refused.value.why.startswith("no node runs containers: ")
        assert refused.value.attempt.startswith("nsml run ...    without --image\n")
        await at.made.write(node("b", isolation=Isolation.CONTAINER))
        await at.made.settled(submitter.state)
        assert (await submitter.submit(wish("r2", image="torch:2"))).spec.image == "torch:2"


async def test_a_gang_where_no_node_gives_it_a_network_is_refused() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await at.made.write(node("a", gang_network="none"))
        await at.made.settled(submitter.state)
        assert (await submitter.submit(wish("r1"))).spec.replica_count == 1
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish("r2", replica_count=2))
        assert "no node gives gangs a network" in str(refused.value)
        assert refused.value.why == "node a: gang_network is none"
        single, own, administrators = refused.value.attempt.splitlines()
        assert single.startswith("nsml run --nodes 1 ")
        assert "nsml up --isolation namespace " in own
        assert administrators.startswith('gang_network = "host" in agent.site.toml ')
        await at.made.write(node("b", isolation=Isolation.CONTAINER, gang_network="none"))
        await at.made.settled(submitter.state)
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish("r2", replica_count=2))
        assert refused.value.why == "nodes a, b: containers without a gang_network"
        await at.made.write(node("b", gang_network="overlay:x"))
        await at.made.settled(submitter.state)
        assert (await submitter.submit(wish("r3", replica_count=2))).spec.replica_count == 2


async def test_where_no_node_has_a_gpu_one_learns_to_do_without() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await at.made.write(replace(node("a"), devices=()))
        await at.made.settled(submitter.state)
        with pytest.raises(CannotEverFit) as refused:
            await submitter.submit(wish(resources=Resources(gpu_thousandths=1000)))
        without, simulated = refused.value.attempt.splitlines()
        assert without.startswith("nsml run -g 0 ")
        assert simulated.startswith("nsml up --simulate-gpus 2 ")


async def test_a_gang_of_more_devices_than_a_record_names_is_refused() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        sixteen = Resources(gpu_thousandths=16_000)
        await submitter.submit(wish("r1", resources=sixteen, replica_count=62))
        with pytest.raises(InvalidRequest, match=r"^1008 GPUs: a session has at most 1000$"):
            await submitter.submit(wish("r2", resources=sixteen, replica_count=63))


async def test_no_queue_is_refused_when_nothing_is_free() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await at.made.write(node("a", 1))
        await at.made.settled(submitter.state)
        one = Resources(gpu_thousandths=1000)
        await submitter.submit(wish("r1", resources=one, no_queue=True))
        submitter.state.put_allocation(held("a", ("a-0", 1000)), 1000)
        with pytest.raises(NoCapacity) as refused:
            await submitter.submit(wish("r2", resources=one, no_queue=True))
        assert "no whole GPU is free" in refused.value.why
        with pytest.raises(NoCapacity):
            await submitter.check(wish("r2", resources=one, no_queue=True))


async def test_only_the_leader_knows_whether_anything_is_free() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        await at.made.write(node("a", 1))
        await at.made.settled(submitter.state)
        made = await submitter.submit(wish("r1", resources=ONE_GPU, no_queue=True))
        at.leads = False
        for call in (submitter.submit, submitter.check):
            with pytest.raises(NotLeader):
                await call(wish("r2", resources=ONE_GPU, no_queue=True))
        assert await submitter.submit(wish("r1", resources=ONE_GPU, no_queue=True)) == made
        await submitter.submit(wish("r2", resources=ONE_GPU))


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"request_id": ""}, InvalidRequest),
        ({"request_id": "a/b"}, InvalidRequest),
        ({"entry": "main.py"}, InvalidRequest),
        ({"argv": ("",)}, InvalidRequest),
        ({"argv": (), "entry": "main.py"}, InvalidRequest),
        ({"argv": (), "entry": "../main.py", "bundle_digest": "0" * 64}, InvalidRequest),
        ({"argv": (), "entry": "/main.py", "bundle_digest": "0" * 64}, InvalidRequest),
        ({"bundle_digest": "../../etc/passwd"}, InvalidRequest),
        ({"argv": ("a\0b",)}, InvalidRequest),
        ({"argv": ("x" * 33_000,)}, TooLarge),
        ({"argv": (), "entry": "x" * 33_000, "bundle_digest": "0" * 64}, TooLarge),
        ({"resources": Resources(gpu_thousandths=1500)}, InvalidRequest),
        ({"resources": Resources(gpu_thousandths=2_000_000)}, InvalidRequest),
        ({"replica_count": 65}, InvalidRequest),
        ({"environment": {"1A": "x"}}, InvalidRequest),
        ({"environment": {"NSML_RUN_DIR": "x"}}, InvalidRequest),
        ({"environment": {"A": "x\0"}}, InvalidRequest),
        ({"environment": {"A": "x" * 33_000}}, TooLarge),
        ({"image": "pytorch; reboot"}, InvalidRequest),
        ({"retry_count": 101}, InvalidRequest),
        ({"grace_s": 1e9}, InvalidRequest),
        ({"grace_s": float("nan")}, InvalidRequest),
        ({"limits": Limits(disk_bytes=1)}, InvalidRequest),
        ({"limits": Limits(disk_bytes=1 << 63)}, InvalidRequest),
        ({"limits": Limits(shm_bytes=300)}, InvalidRequest),
        ({"resources": Resources(memory_bytes=300)}, InvalidRequest),
        ({"resources": Resources(memory_bytes=(6 << 20) - 1)}, InvalidRequest),
        ({"limits": Limits(shm_bytes=1 << 63)}, InvalidRequest),
        (
            {
                "limits": Limits(shm_bytes=(6 << 20) + 1),
                "resources": Resources(memory_bytes=6 << 20),
            },
            InvalidRequest,
        ),
        ({"limits": Limits(shm_bytes=24_000_000_001)}, InvalidRequest),
        ({"limits": Limits(process_count=(1 << 32) - 1)}, InvalidRequest),
        ({"time_limit_s": -1.0}, InvalidRequest),
        ({"visibility": Visibility.TEAM}, InvalidRequest),
        ({"gpu_model": "A100"}, InvalidRequest),
        ({"gpu_model": "--", "resources": ONE_GPU}, InvalidRequest),
        ({"gpu_model": " ", "resources": ONE_GPU}, InvalidRequest),
        ({"gpu_model": "A100|", "resources": ONE_GPU}, InvalidRequest),
        ({"gpu_model": "A\x1b[31m", "resources": ONE_GPU}, InvalidRequest),
        ({"gpu_model": "A" * 81, "resources": ONE_GPU}, InvalidRequest),
        ({"pod": "p\n1"}, InvalidRequest),
        ({"pod": "p" * 81}, InvalidRequest),
        ({"memo": "x" * 5000}, TooLarge),
        ({"project": "other"}, NotFound),
        ({"datasets": (DatasetReference(name="../x"),)}, InvalidRequest),
        (
            {"datasets": (DatasetReference(name="x"), DatasetReference(name="x", owner="lee"))},
            InvalidRequest,
        ),
    ],
)
async def test_bad_input_leaves_nothing(facts: dict[str, Any], error: type[NsmlError]) -> None:
    async with desk() as at:
        submitter = await at.submitter()
        wanted = wish(**{"request_id": "r1", **facts})
        with pytest.raises(error):
            await submitter.check(wanted)
        with pytest.raises(error):
            await submitter.submit(wanted)
        assert not await at.sessions()


async def test_shared_memory_beyond_the_memory_is_refused_with_both_figures() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        memory = Resources(memory_bytes=2 * 10**9)
        await submitter.submit(wish("r1", limits=Limits(shm_bytes=2 * 10**9), resources=memory))
        more = wish("r2", limits=Limits(shm_bytes=2 * 10**9 + 1), resources=memory)
        with pytest.raises(InvalidRequest) as refused:
            await submitter.submit(more)
        assert refused.value.message == "2.000000001 GB of shared memory in 2 GB of memory"


async def test_a_size_without_a_unit_is_refused_with_advice() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        for facts in (
            {"resources": Resources(memory_bytes=300)},
            {"limits": Limits(shm_bytes=300)},
            {"limits": Limits(disk_bytes=300)},
        ):
            with pytest.raises(InvalidRequest) as refused:
                await submitter.submit(wish("r1", **facts))
            assert refused.value.attempt == "300 is bytes; 300M?"
        least = Resources(memory_bytes=6 << 20)
        await submitter.submit(wish("r2", resources=least))


async def test_what_is_too_long_or_too_often_is_told_the_most_that_there_is() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        for facts, words in (
            (
                {"time_limit_s": 5000 * 86_400.0},
                ("a time limit of 5000d", "3650d is the longest", "--time-limit 3650d ..."),
            ),
            ({"time_limit_s": -3.0}, ("a time limit of -3 s", "it is 0s to 3650d", "3650d ...")),
            ({"grace_s": math.inf}, ("a grace period of inf s", "it is 0s to 1h", "")),
            ({"grace_s": 7200.0}, ("a grace period of 2h", "1h is the longest", "")),
            ({"retry_count": 101}, ("101 retries: at most 100", "", "nsml run --retry 100 ...")),
            (
                {"resources": Resources(gpu_thousandths=1500)},
                ("1.5 GPUs", "a share is of one device", "nsml run -g 1 ...\nnsml run -g 2 ..."),
            ),
        ):
            with pytest.raises(InvalidRequest) as refused:
                await submitter.submit(wish("r1", **facts))
            error = refused.value
            for text, part in zip((error.message, error.why, error.attempt), words, strict=True):
                assert part in text


async def test_defaults() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        spec = (await submitter.submit(wish("r1"))).spec
        assert (spec.replica_count, spec.grace_s, spec.lost_after_s) == (1, 10.0, 0.0)
        spec = (await submitter.submit(wish("r2", retry_count=1))).spec
        assert spec.lost_after_s == 600.0
        spec = (await submitter.submit(wish("r3", retry_count=1, lost_after_s=9.5))).spec
        assert spec.lost_after_s == 9.5


async def test_large_submissions_together_are_written_apart() -> None:
    async with desk() as at:
        submitter = await at.submitter()
        large = ("x" * 32_000,)
        sessions = await asyncio.gather(
            *[
                submitter.submit(
                    wish(f"r{i}", argv=large, environment={"A": large[0]}, command=large)
                )
                for i in range(31)
            ]
        )
        assert len({session.name for session in sessions}) == 31


async def test_one_that_no_record_holds_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "MAX_TRANSACTION_BYTES", 20_000)
    async with desk() as at:
        submitter = await at.submitter()
        wishes = [wish("r1"), wish("r2", argv=("x" * 30_000,)), wish("r3")]
        one, two, three = await asyncio.gather(
            *[submitter.submit(wanted) for wanted in wishes], return_exceptions=True
        )
        assert isinstance(two, TooLarge)
        assert {one.name, three.name} == {"kim/None/1", "kim/None/2"}
