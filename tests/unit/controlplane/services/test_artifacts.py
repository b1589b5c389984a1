"""Artifacts through real gRPC: told by records, sent by nodes, in versions, read and removed by who may."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from controlplane.artifacts.artifacts import MOST_A_PAGE
from controlplane.artifacts.expiry_loop import KeptFilesExpiry
from controlplane.checkpoints.lost_uploads import Overdue
from controlplane.datasets.pushes import DatasetPushes
from controlplane.domain.errors import LimitReached
from controlplane.domain.identity import Role
from controlplane.state.replica_reports import SETTLED_WITHIN_S
from nsml.content.manifest import Manifest
from nsml.spec.output_datasets import KEPT_BY_DEFAULT_FOLDER, KEPT_FILES, KEPT_FOLDER
from nsml.v1 import agents_pb2, datasets_pb2, nodes_pb2, projects_pb2, sessions_pb2
from nsml.v1 import artifacts_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, report_of, until
from tests.unit.controlplane.services.test_content import read, send, tree
from tests.unit.controlplane.services.test_media import chunk
from tests.unit.controlplane.services.test_sessions import Ingest, refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def told(number: int, **given: Any) -> bytes:
    record = {
        "kind": "artifact",
        "time": 100.0 + number,
        "name": "report",
        "folder": f"{number}-%artifact/model",
        "files": [["a", 7]],
        "seal": "",
        "size": 7,
        "step": float(number),
    }
    return json.dumps({**record, **given}).encode()


def commit(session: str, number: int, **given: Any) -> pb.CommitArtifactRequest:
    request = pb.CommitArtifactRequest(
        session_id=session,
        attempt=1,
        folder=f"{number}-%artifact/model",
        name="report",
        size_bytes=7,
        file_count=1,
    )
    request.saved_at.FromSeconds(100 + number)
    request.MergeFrom(pb.CommitArtifactRequest(**given))
    return request


async def listed(who: Stubs, session: str, **given: Any) -> list[pb.Artifact]:
    request = pb.ListArtifactsRequest(session=session, **given)
    found: list[pb.Artifact] = []
    while True:
        page = await who.artifacts.ListArtifacts(request)
        found += page.artifacts
        request.cursor = page.next_cursor
        if not request.cursor:
            return found


async def test_they_are_told_sent_and_read_in_versions(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, stranger = await (await rig.agent("a")).connect(), await rig.agent("b")
    session = await kim.submit()
    await agent.assignments(1)
    lost = told(9, name="gone", folder="lost-1", lost="no such file")
    records = [told(1), told(2), told(3), lost, told(4, folder="\x1b"), told(5, name="x" * 600)]
    await Ingest(agent.stubs).send(chunk(session.id, 1, *records))
    found = await listed(kim, session.name)
    assert [(one.state, one.version) for one in found] == [(1, 0), (1, 0), (1, 0), (3, 0)]
    assert found[-1].why_lost == "no such file"

    first, blobs = tree(a=b"content")
    whole = commit(session.id, 1, digest=first.digest)
    assert (await refused(agent.stubs.artifacts.CommitArtifact(whole)))[1] == "MISSING_BLOBS"
    await send(agent.stubs, blobs)
    for _ in range(2):
        assert (await agent.stubs.artifacts.CommitArtifact(whole)).version == 1
    assert (await refused(stranger.stubs.artifacts.CommitArtifact(whole)))[0] == "NOT_FOUND"
    assert (await refused(kim.artifacts.CommitArtifact(whole)))[0] == "PERMISSION_DENIED"
    # Equal files make no version, and neither does a record that comes again.
    same = commit(session.id, 2, digest=first.digest)
    assert (await agent.stubs.artifacts.CommitArtifact(same)).version == 0
    await Ingest(agent.stubs).send(chunk(session.id, 1, *records))
    second, more = tree(a=b"another")
    await send(agent.stubs, more)
    another = commit(session.id, 3, digest=second.digest, why_lost="changed")
    assert (await agent.stubs.artifacts.CommitArtifact(another)).version == 0
    another.why_lost = ""
    assert (await agent.stubs.artifacts.CommitArtifact(another)).version == 2

    assert (await refused(read(kim, first.digest)))[0] == "NOT_FOUND"
    found = await listed(kim, session.name, name="report", page_size=1)
    assert [(one.version, one.digest, one.step) for one in found] == [
        (1, first.digest, 1.0),
        (2, second.digest, 3.0),
    ]
    assert found[0].node == "a"
    assert await read(kim, first.digest, *blobs) == blobs
    assert (await refused(listed(lee, session.name)))[0] == "NOT_FOUND"
    assert (await refused(read(lee, first.digest)))[0] == "NOT_FOUND"


async def test_a_version_that_is_removed_is_not_given_again(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    manifest, blobs = tree(a=b"content")
    await send(agent.stubs, blobs)
    whole = commit(session.id, 1, digest=manifest.digest)
    await agent.stubs.artifacts.CommitArtifact(whole)

    def remove(*versions: int) -> pb.RemoveArtifactsRequest:
        named = [pb.ArtifactVersion(name="report", version=one) for one in versions]
        return pb.RemoveArtifactsRequest(session=session.name, versions=named)

    assert (await refused(lee.artifacts.RemoveArtifacts(remove(1))))[0] == "NOT_FOUND"
    assert (await refused(kim.artifacts.RemoveArtifacts(remove(1, 2))))[0] == "NOT_FOUND"
    assert (await refused(kim.artifacts.RemoveArtifacts(remove())))[0] == "INVALID_ARGUMENT"
    assert len(await listed(kim, session.name)) == 1
    await kim.artifacts.RemoveArtifacts(remove(1))
    assert await listed(kim, session.name) == []
    for name, removed in (("report", 1), ("other", 0)):
        request = pb.ListArtifactsRequest(session=session.name, name=name)
        assert (await kim.artifacts.ListArtifacts(request)).removed == removed
    await agent.stubs.artifacts.CommitArtifact(whole)  # its answer was lost, say
    assert await listed(kim, session.name) == []
    again = commit(session.id, 2, digest=manifest.digest)
    assert (await agent.stubs.artifacts.CommitArtifact(again)).version == 2


async def test_a_node_finds_the_newest_of_a_name_among_its_users_sessions_alone(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent, stranger = await (await rig.agent(gpus=3)).connect(), await rig.agent("b")
    first, of_lee, asking = await kim.submit(), await lee.submit(), await kim.submit()
    await agent.assignments(3)
    ask = pb.FindArtifactRequest(session_id=asking.id, name="report")
    manifests = {}
    for number, session in ((1, first), (2, asking), (9, of_lee)):
        manifests[session.id], blobs = tree(a=f"{number}".encode())
        await send(agent.stubs, blobs)
    for number, session, finds in ((1, first, first), (9, of_lee, first), (2, asking, asking)):
        digest = manifests[session.id].digest
        await agent.stubs.artifacts.CommitArtifact(commit(session.id, number, digest=digest))
        found = (await agent.stubs.artifacts.FindArtifact(ask)).artifact
        assert (found.session, found.digest) == (finds.name, manifests[finds.id].digest)
    for who, code in ((kim, "PERMISSION_DENIED"), (stranger.stubs, "NOT_FOUND")):
        assert (await refused(who.artifacts.FindArtifact(ask)))[0] == code
    ask.name = "other"
    assert (await refused(agent.stubs.artifacts.FindArtifact(ask)))[0] == "NOT_FOUND"
    version = pb.ArtifactVersion(name="report", version=1)
    removal = pb.RemoveArtifactsRequest(session=asking.name, versions=[version])
    await kim.artifacts.RemoveArtifacts(removal)
    ask.name = "report"
    assert (await agent.stubs.artifacts.FindArtifact(ask)).artifact.session == first.name


async def test_a_node_finds_one_however_many_newer_ones_others_have(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent(gpus=3)).connect()
    saved, of_lee, asking = await kim.submit(), await lee.submit(), await kim.submit()
    await agent.assignments(3)
    whole, blobs = tree(a=b"content")
    await send(agent.stubs, blobs)
    await agent.stubs.artifacts.CommitArtifact(commit(saved.id, 1, digest=whole.digest))
    [stands] = await rig.on.history.artifacts.list(saved.id, limit=1)
    for number in range(2, 2 * MOST_A_PAGE):
        await rig.on.history.artifacts.settle(
            replace(
                stands,
                session_id=of_lee.id,
                folder=f"{number}-%artifact/model",
                saved_at=100.0 + number,
                digest=f"{number:064x}",
            )
        )
    ask = pb.FindArtifactRequest(session_id=asking.id, name="report")
    assert (await agent.stubs.artifacts.FindArtifact(ask)).artifact.session == saved.name


@pytest.mark.parametrize(
    "given",
    [{"name": "x" * 513}, {"digest": "xyz"}, {"digest": "../" * 20}, {"folder": "a b" * 99}],
)
async def test_a_node_cannot_commit_anything(rig: Rig, given: dict[str, Any]) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await agent.assignments(1)
    manifest, blobs = tree(a=b"content")
    await send(agent.stubs, blobs)
    bad = commit(session.id, 1, **{"digest": manifest.digest, **given})
    assert (await refused(agent.stubs.artifacts.CommitArtifact(bad)))[0] == "INVALID_ARGUMENT"


async def versions(who: Stubs, name: str) -> list[tuple[int, str, str]]:
    request = datasets_pb2.ListDatasetVersionsRequest(name=name)
    every = await who.datasets.ListDatasets(datasets_pb2.ListDatasetsRequest())
    if name not in {one.name for one in every.datasets}:
        return []
    found = (await who.datasets.ListDatasetVersions(request)).versions
    return [(one.version, one.digest, one.message) for one in found]


def output(session: str, name: str, digest: str) -> pb.CommitArtifactRequest:
    return commit(session, 0, folder="00-%artifact/model", name=name, digest=digest)


async def test_the_output_of_a_session_that_succeeds_becomes_a_version(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    session = await kim.submit(output_datasets=["kim/made=out", "other"])
    assert session.spec.output_datasets == ["made=out", "other"]
    [order] = await agent.assignments(1)
    assert order.spec.output_datasets == ["made=out", "other"]
    manifest, blobs = tree(a=b"content", label=b"secret")
    await send(agent.stubs, blobs)
    whole = output(session.id, "made", manifest.digest)
    assert (await refused(agent.stubs.artifacts.CommitArtifact(whole)))[0] == "UNAVAILABLE"
    await agent.report(order.replica, "EXITED", cause="COMPLETED")
    await kim.reaches(session.name, "FINALIZING")
    assert await versions(kim, "made") == []
    with monkeypatch.context() as busy:
        busy.setattr(DatasetPushes, "create_version", AsyncMock(side_effect=LimitReached("busy")))
        assert (await refused(agent.stubs.artifacts.CommitArtifact(whole)))[0] == "UNAVAILABLE"
    for _ in range(2):
        await agent.stubs.artifacts.CommitArtifact(whole)
    assert await versions(kim, "made") == [(1, manifest.digest, "")]
    assert await versions(lee, "made") == []
    # What the program saves under the name of an output is none.
    await agent.stubs.artifacts.CommitArtifact(
        commit(session.id, 3, name="other", digest=manifest.digest)
    )
    assert await versions(kim, "other") == []
    # A lost answer makes no second one when there is a newer version meanwhile, and a part of it is hidden.
    label = datasets_pb2.DatasetPart(path="label", access="PART_ACCESS_HIDDEN")
    await kim.datasets.UpdateDataset(
        datasets_pb2.UpdateDatasetRequest(name="kim/made", parts=[label])
    )
    newer, more = tree(a=b"newer")
    await send(kim, more)
    await kim.datasets.CreateDatasetVersion(
        datasets_pb2.CreateDatasetVersionRequest(name="made", digest=newer.digest)
    )
    await agent.stubs.artifacts.CommitArtifact(whole)
    assert [number for number, _, _ in await versions(kim, "made")] == [2, 1]
    await agent.report(order.replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(session.name, "SUCCEEDED")


async def test_what_made_a_version_is_known_to_the_platform_and_told_as_far_as_may_be_seen(
    rig: Rig,
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    for who, name, visibility in ((kim, "mine", "PRIVATE"), (lee, "theirs", "PUBLIC")):
        read, blobs = tree(a=name.encode())
        await send(who, blobs)
        await who.datasets.CreateDatasetVersion(
            datasets_pb2.CreateDatasetVersionRequest(
                name=name, digest=read.digest, visibility=f"VISIBILITY_{visibility}"
            )
        )
    agent = await (await rig.agent()).connect()
    read_by = [sessions_pb2.DatasetReference(name=one) for one in ("mine", "lee/theirs")]
    session = await kim.submit("train", output_datasets=["made"], datasets=read_by)
    [order] = await agent.assignments(1)
    manifest, blobs = tree(a=b"content")
    await send(agent.stubs, blobs)
    await agent.report(order.replica, "EXITED", cause="COMPLETED")
    await kim.reaches(session.name, "FINALIZING")
    await agent.stubs.artifacts.CommitArtifact(output(session.id, "made", manifest.digest))
    await kim.datasets.UpdateDataset(
        datasets_pb2.UpdateDatasetRequest(name="made", visibility="VISIBILITY_PUBLIC")
    )

    async def lineage(who: Stubs) -> datasets_pb2.DatasetLineage:
        asked = datasets_pb2.GetDatasetRequest(name="kim/made")
        every = datasets_pb2.ListDatasetVersionsRequest(name="kim/made")
        found = (await who.datasets.GetDataset(asked)).dataset.lineage
        assert (await who.datasets.ListDatasetVersions(every)).versions[-1].lineage == found
        return found

    def names(found: Any) -> list[tuple[str, int]]:
        return [(one.name, one.version) for one in found]

    made = await lineage(kim)
    assert (made.session, made.session_id, made.attempt) == (session.name, session.id, 1)
    assert (names(made.datasets), made.withheld_datasets) == (
        [("kim/mine", 1), ("lee/theirs", 1)],
        0,
    )
    assert names((await kim.get(session.name)).made_datasets) == [("kim/made", 1)]
    hidden = datasets_pb2.DatasetLineage(withheld_datasets=1, datasets=made.datasets[1:])
    assert await lineage(lee) == hidden, "neither the session nor a private dataset"
    await agent.report(order.replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(session.name, "SUCCEEDED")
    assert await lineage(lee) == hidden
    # The same content pushed by hand is the same version; a message says nothing of it.
    await send(kim, blobs)
    again = datasets_pb2.CreateDatasetVersionRequest(
        name="made", digest=manifest.digest, message=f"output of {session.name}"
    )
    assert not (await kim.datasets.CreateDatasetVersion(again)).created
    used = datasets_pb2.GetDatasetRequest(name="mine", version=1)

    async def is_used() -> bool:
        return list((await kim.datasets.GetDataset(used)).use.ended_names) == [session.name]

    await until(is_used, "it is in the catalogue")
    await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=session.id))
    assert await lineage(kim) == made
    await lee.datasets.RemoveDataset(datasets_pb2.RemoveDatasetRequest(name="theirs"))
    assert names((await lineage(kim)).datasets) == [("kim/mine", 1)]
    assert (await lineage(kim)).withheld_datasets == 1


async def test_an_output_that_was_the_newest_version_makes_none_however_late_it_is_asked_again(
    rig: Rig,
) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    old, other = tree(a=b"old"), tree(a=b"other")
    await send(agent.stubs, old[1])

    async def push(what: tuple[Manifest, dict[str, bytes]]) -> None:
        await send(kim, what[1])
        await kim.datasets.CreateDatasetVersion(
            datasets_pb2.CreateDatasetVersionRequest(name="made", digest=what[0].digest)
        )

    async def end_with(what: Manifest) -> tuple[agents_pb2.ReplicaId, pb.CommitArtifactRequest]:
        session = await kim.submit(output_datasets=["made"])
        [order] = await agent.assignments(1)
        await agent.report(order.replica, "EXITED", cause="COMPLETED")
        await kim.reaches(session.name, "FINALIZING")
        committed = output(session.id, "made", what.digest)
        await agent.stubs.artifacts.CommitArtifact(committed)
        return order.replica, committed

    await push(old)
    replica, committed = await end_with(old[0])
    await push(other)
    await agent.stubs.artifacts.CommitArtifact(committed)
    assert [number for number, _, _ in await versions(kim, "made")] == [2, 1]
    await agent.report(replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(replica.session_id, "SUCCEEDED")
    await agent.assignments(0)
    await end_with(old[0])  # another session brings the old content back
    assert [number for number, _, _ in await versions(kim, "made")] == [3, 2, 1]


@pytest.mark.parametrize("why", ["failed", "empty"])
async def test_an_output_that_makes_no_version_says_why(rig: Rig, why: str) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit(output_datasets=["made"])
    [order] = await agent.assignments(1)
    manifest, blobs = tree(**({"a": b"content"} if why == "failed" else {}))
    await send(agent.stubs, blobs)
    cause = "PROGRAM_FAILED" if why == "failed" else "COMPLETED"
    await agent.report(order.replica, "EXITED", cause=cause, code=int(why == "failed"))
    await kim.reaches(session.name, "FINALIZING")
    await agent.stubs.artifacts.CommitArtifact(output(session.id, "made", manifest.digest))
    assert await versions(kim, "made") == []
    [one] = await listed(kim, session.name)
    assert one.note == "no version of the dataset: " + (
        "attempt 1 did not succeed" if why == "failed" else "a dataset has at least one file"
    )
    # Said of what has the same content, and is not listed, it is said of what is.
    await agent.stubs.artifacts.CommitArtifact(
        commit(session.id, 3, name="made", digest=manifest.digest, left_out="left out: b")
    )
    [one] = await listed(kim, session.name)
    assert (one.version, one.note, one.why_lost) == (1, "left out: b", "")


@pytest.mark.parametrize("registers", [False, True])
async def test_an_output_that_its_node_takes_along_says_why(rig: Rig, registers: bool) -> None:
    kim, root = await rig.user("kim"), await rig.user("root1", role=Role.ADMIN)
    agent = await (await rig.agent("a")).connect()
    session = await kim.submit(output_datasets=["made=out", "other"])
    [order] = await agent.assignments(1)
    if registers:
        await agent.close()
        ended = report_of(order.replica, "EXITED", cause="COMPLETED")
        agent = await Agent(agent.stubs, "a", replicas=(ended,)).connect()
    else:
        await agent.report(order.replica, "EXITED", cause="COMPLETED")
    await kim.reaches(session.name, "FINALIZING")

    async def is_noted() -> bool:
        return len(await listed(kim, session.name)) == 2

    await until(is_noted, "its outputs are noted")
    found = await listed(kim, session.name)
    assert [(one.name, one.state, one.node) for one in found] == [
        ("made", pb.ARTIFACT_STATE_SAVED, "a"),
        ("other", pb.ARTIFACT_STATE_SAVED, "a"),
    ]
    await agent.close()
    await root.nodes.FenceNode(nodes_pb2.FenceNodeRequest(name="a", force=True))
    await kim.reaches(session.name, "SUCCEEDED")
    core = rig.plane.core
    later = SimpleNamespace(time=lambda: core.clock.time() + SETTLED_WITHIN_S)
    overdue = Overdue(history=core.history, references=core.references, clock=later)  # type: ignore[arg-type]
    await overdue.settle()
    found = await listed(kim, session.name)
    assert [one.state for one in found] == [pb.ARTIFACT_STATE_LOST] * 2
    assert {one.why_lost for one in found} == {
        "a did not send it within 10 minutes of its attempt's end"
    }


@pytest.mark.parametrize("asked", [{"output_datasets": ["made"]}, {"keep_files": True}])
async def test_an_agent_that_would_keep_nothing_is_not_given_it(
    rig: Rig, asked: dict[str, Any]
) -> None:
    outputs = agents_pb2.AGENT_ABILITY_OUTPUTS
    knows = [one for one in agents_pb2.AgentAbility.values()[1:] if one != outputs]
    kim = await rig.user("kim")
    old = await (await rig.agent("old", abilities=knows)).connect()
    await kim.submit(**asked)
    [order] = await old.assignments(1)
    assert order.stop.cause == sessions_pb2.CAUSE_NODE_REFUSED
    assert "too old for --output-dataset and --keep-files" in order.stop.reason


async def test_an_agent_that_would_keep_nothing_runs_what_did_not_ask_for_it() -> None:
    outputs = agents_pb2.AGENT_ABILITY_OUTPUTS
    knows = [one for one in agents_pb2.AgentAbility.values()[1:] if one != outputs]
    async with platform(character={"keep_files": True}) as rig:
        kim = await rig.user("kim")
        old = await (await rig.agent("old", abilities=knows)).connect()
        assert (await kim.submit()).spec.keep_files_by_default
        [order] = await old.assignments(1)
        assert not order.HasField("stop")


@pytest.mark.parametrize(
    "texts", [["../x"], ["a=/etc"], ["a=b/../.."], ["a=b", "a=c"], ["a\0=b"], ["x" * 65], ["None"]]
)
async def test_an_output_dataset_that_is_none_is_refused(rig: Rig, texts: list[str]) -> None:
    kim = await rig.user("kim")
    assert (await refused(kim.submit(output_datasets=texts)))[0] == "INVALID_ARGUMENT"


def kept_files(session: str, digest: str, folder: str) -> pb.CommitArtifactRequest:
    return commit(session, 1, digest=digest, folder=folder, name=KEPT_FILES)


async def test_files_are_kept_by_default_where_the_platform_says_so_and_expire() -> None:
    character = {"keep_files": True, "keep_files_by_default_s": 3600.0, "keep_files_s": 4e9}
    async with platform(character=character) as rig:
        kim = await rig.user("kim")
        assert not (await kim.submit(no_keep_files=True)).spec.keep_files_by_default
        both = kim.submit(keep_files=True, no_keep_files=True)
        assert (await refused(both))[0] == "INVALID_ARGUMENT"
        root = await rig.user("root", role=Role.ADMIN)
        settings = projects_pb2.ProjectSettings(keep_files="off")
        made = projects_pb2.CreateProjectRequest(name="vision", members=["kim"], settings=settings)
        await root.projects.CreateProject(made)
        assert not (await kim.submit(project="vision")).spec.keep_files_by_default
        asks = await kim.submit(keep_files=True, project="vision")
        assert (asks.spec.keep_files, asks.spec.keep_files_by_default) == (True, False)
        session = await kim.submit()
        assert (session.spec.keep_files, session.spec.keep_files_by_default) == (False, True)
        agent = await (await rig.agent(gpus=4)).connect()
        orders = {one.replica.session_id: one for one in await agent.assignments(4)}
        assert orders[session.id].spec.keep_files
        manifest, blobs = tree(a=b"content")
        await send(agent.stubs, blobs)
        for one, folder, kept_s in (
            (asks, KEPT_FOLDER, 4e9),
            (session, KEPT_BY_DEFAULT_FOLDER, 3600),
        ):
            of_default = orders[one.id].spec.keep_files_by_default
            assert of_default == (one is session), "of which less is kept"
            await agent.stubs.artifacts.CommitArtifact(kept_files(one.id, manifest.digest, folder))
            [kept] = await listed(kim, one.name)
            assert kept.expires_at.seconds == kept.saved_at.seconds + kept_s
        loops = [loop for feature in rig.plane.features for loop in feature.leader_loops]
        [expiry] = [one.__self__ for one in loops if isinstance(one.__self__, KeptFilesExpiry)]
        assert await expiry.expire() == 0, "they run"
        for one in (asks, session):
            await agent.report(orders[one.id].replica, "FINALIZED", cause="COMPLETED")
            await kim.reaches(one.id, "SUCCEEDED")
            await until(partial(_is_recorded, rig, one.id), "it is in the catalogue")
        assert await expiry.expire() == 1
        page = pb.ListArtifactsRequest(session=session.name, name=KEPT_FILES)
        answer = await kim.artifacts.ListArtifacts(page)
        assert (len(answer.artifacts), answer.removed, answer.expired) == (0, 1, 1)
        assert await expiry.expire() == 0


async def _is_recorded(rig: Rig, session: str) -> bool:
    return await rig.on.history.catalogue.session(session) is not None


async def test_files_that_went_with_their_node_are_lost_and_say_so(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent("a")).connect()
    session = await kim.submit(keep_files=True)
    [order] = await agent.assignments(1)
    await agent.report(order.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    await agent.close()
    await (await rig.agent("a", boot_id="boot2")).connect()
    await kim.reaches(session.id, "FAILED")
    await until(partial(_is_recorded, rig, session.id), "it is in the catalogue")
    [lost] = await listed(kim, session.name)
    assert (lost.name, lost.state) == (KEPT_FILES, pb.ARTIFACT_STATE_LOST)
    assert lost.why_lost == "the attempt was lost with its node a"
