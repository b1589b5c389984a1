"""Labels that training must not read, tried by every way to a byte of a dataset, through real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from controlplane.content import limited_process, subtrees
from controlplane.content.object_gc import recorded
from controlplane.content.withdrawals import Withdrawals
from controlplane.datasets import queued_sessions
from controlplane.datasets.lookup import DatasetLookup
from controlplane.datasets.queued_sessions import QueuedSessions
from controlplane.domain.errors import Unavailable
from controlplane.domain.identity import Role
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import Manifest, decode
from nsml.v1 import agents_pb2, content_pb2, datasets_pb2, resources_pb2, sessions_pb2
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_leader_forwarding import two
from tests.unit.controlplane.services.test_sessions import refused

OPEN, OWNER, HIDDEN = (
    datasets_pb2.PART_ACCESS_OPEN,
    datasets_pb2.PART_ACCESS_OWNER,
    datasets_pb2.PART_ACCESS_HIDDEN,
)
FILES = {
    "train/data": b"to learn from",
    "test/test_data": b"to predict",
    "test/test_label": b"what nobody may train on",
    "notes": b"of the owner",
}
WHOLE, BLOBS = tree(**FILES)
LABEL = digest_of(FILES["test/test_label"])
PUBLIC = resources_pb2.VISIBILITY_PUBLIC


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


def parts(**access: int) -> list[datasets_pb2.DatasetPart]:
    return [datasets_pb2.DatasetPart(path=path, access=one) for path, one in access.items()]


LABELS = parts(**{"test/test_label": HIDDEN, "notes": OWNER})


async def pushed(
    kim: Stubs, files: Mapping[str, bytes] = FILES, **facts: Any
) -> datasets_pb2.Dataset:
    manifest, blobs = tree(**files)
    await send(kim, blobs)
    return await push(kim, "digits", manifest, **facts)


async def found(who: Stubs, name: str = "kim/digits", **facts: Any) -> datasets_pb2.Dataset:
    request = datasets_pb2.GetDatasetRequest(name=name, **facts)
    return (await who.datasets.GetDataset(request)).dataset


async def paths(who: Stubs, root: str) -> set[str]:
    """The files of a tree that somebody reads, each of whose blobs is there."""
    manifest = await manifest_of(who, root)
    got = await read(who, root, root, *manifest.blobs())
    assert got.keys() == {root, *manifest.blobs()}
    return {entry.path for entry in manifest.entries}


async def manifest_of(who: Stubs, root: str) -> Manifest:
    return decode((await read(who, root))[root], digest=root)


async def share(who: Stubs, **access: int) -> datasets_pb2.Dataset:
    request = datasets_pb2.UpdateDatasetRequest(name="kim/digits", parts=parts(**access))
    return (await who.datasets.UpdateDataset(request)).dataset


async def mounted(who: Stubs, **reference: Any) -> str:
    """The root that a session gets."""
    reference.setdefault("name", "kim/digits")
    asked = sessions_pb2.DatasetReference(**reference)
    session = await who.submit(datasets=[asked], visibility=PUBLIC)
    return session.spec.datasets[0].digest


async def test_each_gets_the_parts_that_they_may_have_in_one_folder(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    root = await rig.user("root", role=Role.ADMIN)
    own = await pushed(kim, parts=LABELS, visibility=PUBLIC)
    assert (own.digest, own.file_count) == (WHOLE.digest, 4)
    assert own.size_bytes == WHOLE.size
    told = {one.path: (one.access, one.file_count, bool(one.digest)) for one in own.parts}
    assert told == {
        "": (OPEN, 2, True),
        "notes": (OWNER, 1, True),
        "test/test_label": (HIDDEN, 1, True),
    }
    theirs = await found(lee)
    assert theirs.file_count == 2
    told = {one.path: (one.access, one.file_count, bool(one.digest)) for one in theirs.parts}
    assert told == {
        "": (OPEN, 2, True),
        "notes": (OWNER, 0, False),
        "test/test_label": (HIDDEN, 0, False),
    }
    assert await paths(lee, theirs.digest) == {"train/data", "test/test_data"}
    for who in (kim, root):
        assert await paths(who, (await found(who)).digest) == set(FILES)
    everybodys = {"train/data", "test/test_data"}
    agent = await (await rig.agent()).connect()
    for who, has in (
        (lee, everybodys),
        (kim, everybodys | {"notes"}),
        (root, {*everybodys, "notes"}),
    ):
        assert await paths(agent.stubs, await mounted(who)) == has


async def refuses(who: Stubs | Agent, *roots: str) -> bool:
    """Whether somebody can read the label by none of the roots, and make nothing of it."""
    stubs = who.stubs if isinstance(who, Agent) else who
    for root in {*roots, LABEL}:
        for digests in ((), (LABEL,)):
            if (await refused(read(stubs, root, *digests)))[0] != "NOT_FOUND":
                return False
        asked = content_pb2.FindMissingBlobsRequest(digests=[LABEL], root=root, bases=[root])
        if LABEL not in (await stubs.content.FindMissingBlobs(asked)).missing:
            return False
    return True


async def test_no_digest_leads_anybody_else_to_the_labels(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    own = await pushed(kim, parts=LABELS, visibility=PUBLIC)
    secret = [own.digest, *(one.digest for one in own.parts if one.access == HIDDEN)]
    assert await refuses(lee, *secret)
    opened = (await found(lee)).digest
    assert (await refused(read(lee, opened, LABEL)))[0] == "NOT_FOUND"
    for root in secret:
        request = datasets_pb2.CreateDatasetVersionRequest(name="mine", digest=root)
        assert (await refused(lee.datasets.CreateDatasetVersion(request)))[1] == "MISSING_BLOBS"
        assert (await refused(lee.submit(bundle_digest=root)))[1] == "MISSING_BLOBS"
    # What a session, or a node for it, may ask of what is mounted there.
    agent = await (await rig.agent()).connect()
    for who in (lee, kim):
        assert await mounted(who) not in secret
    await agent.assignments(2)
    assert await refuses(agent, *secret)


async def test_nothing_that_others_are_told_has_the_digest_of_what_they_may_not_read(
    rig: Rig,
) -> None:
    """By it a guess of a few labels could be checked."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    own = await pushed(kim, parts=LABELS, visibility=PUBLIC)
    secret = {own.digest, *(one.digest for one in own.parts if one.access != OPEN)}
    await mounted(lee)
    versions = datasets_pb2.ListDatasetVersionsRequest(name="kim/digits")
    told = [
        await lee.datasets.GetDataset(datasets_pb2.GetDatasetRequest(name="kim/digits")),
        await lee.datasets.ListDatasets(datasets_pb2.ListDatasetsRequest(words=["digits"])),
        await lee.datasets.ListDatasetVersions(versions),
        await lee.sessions.ListSessions(sessions_pb2.ListSessionsRequest()),
    ]
    assert not [one for one in told for digest in secret if digest in str(one)]
    everything = await kim.datasets.ListDatasetVersions(versions)
    assert all(digest in str(everything) for digest in secret)


async def test_a_fork_gets_what_its_own_user_may_have(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    own = await pushed(kim, parts=LABELS, visibility=PUBLIC)
    owners = await mounted(kim)
    everybodys = await mounted(lee)
    assert owners != everybodys
    # As a fork or a rerun names it: with the digest in the record of the session that it is of.
    assert await mounted(lee, version=1, digest=owners) == everybodys
    assert await mounted(lee, version=1, digest=owners, streamed=True) == everybodys
    assert await mounted(kim, version=1, digest=everybodys) == owners
    for digest in (own.digest, *(one.digest for one in own.parts if one.access == HIDDEN)):
        for who in (lee, kim):
            asked = sessions_pb2.DatasetReference(name="kim/digits", version=1, digest=digest)
            assert (await refused(who.submit(datasets=[asked])))[0] == "NOT_FOUND"


async def test_parts_stay_hidden_whoever_pushes_whatever_next(rig: Rig) -> None:
    """Also by clients that know of no parts, and after all of the dataset was removed."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await pushed(kim, parts=LABELS, visibility=PUBLIC)
    assert (await pushed(kim)).version == 1, "unchanged data makes no version"
    changed = {**FILES, "test/test_label": b"another label"}
    second = await pushed(kim, changed)
    assert second.version == 2
    assert await paths(lee, (await found(lee)).digest) == {"train/data", "test/test_data"}
    # The open part is the same, and so is what others get.
    assert (await found(lee)).digest == (await found(lee, version=1)).digest
    third = await pushed(kim, {"train/data": b"alone"})
    assert (third.version, len(third.parts)) == (3, 0)
    await kim.datasets.RemoveDataset(datasets_pb2.RemoveDatasetRequest(name="digits"))
    without = {path: data for path, data in FILES.items() if path != "test/test_label"}
    fourth = await pushed(kim, {**without, "test/test_label/a": b"a"}, visibility=PUBLIC)
    assert fourth.version == 4
    assert await paths(lee, (await found(lee)).digest) == {"train/data", "test/test_data"}


@pytest.mark.parametrize("by", ["push", "share"])
async def test_what_is_hidden_is_hidden_in_the_versions_before_too(rig: Rig, by: str) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await pushed(kim, {"test/test_label": b"nothing but labels"}, visibility=PUBLIC)
    await pushed(kim, {"train/data": b"no label at all"})
    opened = await pushed(kim)
    assert await paths(lee, (await found(lee)).digest) == set(FILES)
    before = await mounted(lee)
    if by == "push":
        await pushed(kim, {**FILES, "more": b"1"}, parts=parts(test=HIDDEN))
    else:
        await share(kim, test=HIDDEN)
    assert await paths(lee, (await found(lee, version=1)).digest) == set()
    assert await paths(lee, (await found(lee, version=2)).digest) == {"train/data"}
    assert await paths(lee, (await found(lee, version=3)).digest) == {"train/data", "notes"}
    assert await refuses(await rig.user("third"), opened.digest, before)
    # Lee was shown it before.
    assert await refuses(lee, opened.digest, before)
    assert await mounted(lee, version=3) != before
    assert await paths(kim, (await found(kim, version=3)).digest) == set(FILES)


async def test_who_reads_a_part_is_changed_in_all_versions(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    first = await pushed(kim, parts=LABELS, visibility=PUBLIC)
    await pushed(kim, {**FILES, "test/test_label": b"another label"})
    shown = await share(kim, **{"test/test_label": OPEN})
    assert {one.path: one.access for one in shown.parts}["test/test_label"] == OPEN
    opened = await found(lee, version=1)
    assert await paths(lee, opened.digest) == set(FILES) - {"notes"}
    before = await mounted(lee, version=1)
    await share(kim, **{"test/test_label": HIDDEN, "notes": HIDDEN})
    for number in (1, 2):
        now = await found(lee, version=number)
        assert await paths(lee, now.digest) == {"train/data", "test/test_data"}
        assert {one.path for one in now.parts if not one.digest} == {"notes", "test/test_label"}
        owners = await mounted(kim, version=number)
        assert await paths(kim, owners) == {"train/data", "test/test_data"}
    # A repetition of a session that had it is not made with what it had.
    asked = sessions_pb2.DatasetReference(name="kim/digits", version=1, digest=before)
    _, _, told = await refused(lee.submit(datasets=[asked]))
    assert told["why"] == "who reads its parts was changed since"
    third = await rig.user("third")
    assert await refuses(third, first.digest, opened.digest, before)


async def test_only_the_owner_changes_who_reads_parts(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await pushed(kim, parts=LABELS, visibility=PUBLIC)
    assert (await refused(share(lee, **{"test/test_label": OPEN})))[0] == "PERMISSION_DENIED"
    assert (await refused(share(kim, nothing=HIDDEN)))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("access", "says"),
    [
        ({"test/none": HIDDEN}, "has no file test/none"),
        ({"../train": HIDDEN}, "is not the path of a part"),
        ({"/train": HIDDEN}, "is not the path of a part"),
        ({"": HIDDEN}, "is not the path of a part"),
        ({"test/": HIDDEN}, "is not the path of a part"),
        ({"a" * 200 + "/" + "b" * 200: 9}, "no access 9"),
        ({f"{n}": HIDDEN for n in range(33)}, "at most 32 parts"),
        ({"train": HIDDEN, "test": HIDDEN, "notes": OWNER}, "nobody else could read any file"),
    ],
)
async def test_what_is_no_part_is_refused_and_nothing_is_kept(
    rig: Rig, access: dict[str, int], says: str
) -> None:
    kim = await rig.user("kim")
    await send(kim, BLOBS)
    request = datasets_pb2.CreateDatasetVersionRequest(
        name="digits", digest=WHOLE.digest, parts=parts(**access)
    )
    with pytest.raises(Exception, match=says):
        await kim.datasets.CreateDatasetVersion(request)
    assert (await pushed(kim)).parts == []


async def test_a_part_within_a_part_is_its_own(rig: Rig) -> None:
    """The longest path says to which part a file belongs: no file is of two."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    nested = parts(test=OWNER, **{"test/test_label": HIDDEN, "test/test": OPEN})
    files = {**FILES, "test/test": b"1", "testing": b"2"}
    own = await pushed(kim, files, parts=nested, visibility=PUBLIC)
    of = {one.path: await paths(kim, one.digest) for one in own.parts}
    assert of == {
        "": {"train/data", "notes", "testing"},
        "test": {"test/test_data"},
        "test/test": {"test/test"},
        "test/test_label": {"test/test_label"},
    }
    assert await paths(lee, (await found(lee)).digest) == of[""] | of["test/test"]


async def test_all_of_a_version_is_referred_to_until_it_is_purged(rig: Rig) -> None:
    kim = await rig.user("kim")
    own = await pushed(kim, parts=LABELS)
    wanted = {own.digest, await mounted(kim), *(one.digest for one in own.parts)}
    history = rig.plane.core.history

    async def referred() -> dict[str, str]:
        roots = [one async for page, _ in recorded(history, inline) for one in page]
        return {one.digest: one.owner for one in roots if one.digest in wanted}

    assert await referred() == dict.fromkeys(wanted, "kim")
    assert await history.catalogue.versions_among(wanted) == wanted
    [largest, *_] = await history.kept.largest("kim", {})
    assert (largest.name, largest.bytes) == ("digits", WHOLE.size)
    await kim.datasets.RemoveDataset(datasets_pb2.RemoveDatasetRequest(name="digits"))
    assert await referred() == dict.fromkeys(wanted, "")
    assert (await refused(read(kim, own.digest)))[0] == "NOT_FOUND"
    await kim.datasets.RestoreDataset(datasets_pb2.RestoreDatasetRequest(name="digits"))
    assert await paths(kim, (await found(kim)).digest) == set(FILES)
    await kim.datasets.RemoveDataset(datasets_pb2.RemoveDatasetRequest(name="digits"))
    await history.catalogue.purge_datasets(float("inf"))
    assert not {*await referred()} - {await _live_root(kim)}


async def _live_root(kim: Stubs) -> str:
    listed = await kim.sessions.ListSessions(sessions_pb2.ListSessionsRequest())
    return str(listed.sessions[0].spec.datasets[0].digest)


async def test_a_large_manifest_is_divided_by_a_process_of_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = await rig.user("kim")
    small = await pushed(kim, parts=LABELS)
    monkeypatch.setattr(subtrees, "SMALL_BYTES", 10)
    large = await pushed(kim, {**FILES, "more": b"1"})
    assert {one.path for one in large.parts} == {one.path for one in small.parts}
    same = {one.path: one.digest for one in small.parts if one.path}
    assert {one.path: one.digest for one in large.parts if one.path} == same
    monkeypatch.setattr(limited_process, "WITHIN_S", 0.0)
    with pytest.raises(Exception, match="cannot be divided"):
        await pushed(kim, {**FILES, "more": b"2"})


async def test_what_is_hidden_is_hidden_from_sessions_that_wait_and_at_every_control_plane() -> (
    None
):
    async with two() as (leader, standby):
        kim, lee = await leader.user("kim"), await leader.user("lee")
        theirs = await standby.also(lee)
        whole = (await pushed(kim, visibility=PUBLIC)).digest
        assert (await found(theirs)).digest == whole
        assert LABEL in await read(theirs, whole, LABEL)
        eve = await leader.user("eve")
        manifest, blobs = tree(a=b"of another owner")
        await send(eve, blobs)
        other = (await push(eve, "others", manifest, visibility=PUBLIC)).digest
        assert (await found(theirs, "eve/others")).digest == other
        gone = datasets_pb2.UpdateDatasetRequest(name="others", visibility="VISIBILITY_PRIVATE")
        await eve.datasets.UpdateDataset(gone)  # what was shown can be read for an hour
        agent = await (await leader.agent(gpus=1)).connect()
        asked = [sessions_pb2.DatasetReference(name="kim/digits")]
        running = await lee.submit(datasets=asked)
        [order] = await agent.assignments(1)
        await agent.report(order.replica, "RUNNING")
        waiting = await theirs.submit(datasets=asked)
        assert waiting.spec.datasets[0].digest == whole
        await share(kim, **{"test/test_label": HIDDEN})
        opened = (await found(lee)).digest
        assert (await lee.get(waiting.name)).spec.datasets[0].digest == opened != whole
        assert (await lee.get(running.name)).spec.datasets[0].digest == whole
        assert "test/test_label" in await paths(agent.stubs, whole), "what runs keeps it"

        async def is_hidden() -> bool:
            return await refuses(theirs, whole)

        await until(is_hidden, "the other control plane has heard of it")
        assert (await read(theirs, other, other)).keys() == {other}, "what is of others stays shown"
        assert (await found(theirs)).digest == opened
        await share(kim, **{"test/test_label": OPEN})
        shown = (await lee.get(waiting.name)).spec.datasets[0].digest
        assert "test/test_label" in await paths(kim, shown)


async def test_a_session_that_was_submitted_meanwhile_gets_what_its_user_may_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not yet known when others were looked for."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await pushed(kim, visibility=PUBLIC)
    resolve = DatasetLookup.resolve

    async def late(self: DatasetLookup, *given: Any) -> Any:
        resolved = await resolve(self, *given)
        monkeypatch.undo()
        await share(kim, **{"test/test_label": HIDDEN})
        return resolved

    monkeypatch.setattr(DatasetLookup, "resolve", late)
    session = await lee.submit(datasets=[sessions_pb2.DatasetReference(name="kim/digits")])
    opened = (await found(lee)).digest
    assert (await lee.get(session.name)).spec.datasets[0].digest == opened != WHOLE.digest


async def test_what_is_hidden_is_hidden_from_every_later_attempt_whatever_is_broken_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session runs then, another one waits, and who hides it does not get to those that wait."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    whole = (await pushed(kim, visibility=PUBLIC)).digest
    agent = await (await rig.agent(gpus=1)).connect()
    asked = [sessions_pb2.DatasetReference(name="kim/digits")]
    running = await lee.submit(datasets=asked)
    [order] = await agent.assignments(1)
    await agent.report(order.replica, "RUNNING")
    waiting = await lee.submit(datasets=asked)

    async def broken_off(*_: Any) -> None:
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(Withdrawals, "add", broken_after(Withdrawals.add, times=1))
    monkeypatch.setattr(QueuedSessions, "renew_all", broken_off)
    assert (await refused(share(kim, **{"test/test_label": HIDDEN})))[0] == "UNAVAILABLE"
    opened = (await found(lee)).digest
    assert (await lee.get(waiting.name)).spec.datasets[0].digest == whole != opened

    give = QueuedSessions._give
    monkeypatch.setattr(QueuedSessions, "_give", broken_off)
    monkeypatch.setattr(queued_sessions, "AGAIN_S", 0.0)
    await lee.sessions.RequeueSession(
        sessions_pb2.RequeueSessionRequest(session=running.id, force=True)
    )
    await agent.report(order.replica, "FINALIZED", cause="PREEMPTED")
    await lee.reaches(running.name, "QUEUED")
    for session in (running, waiting):
        assert (await lee.get(session.name)).state == sessions_pb2.SESSION_STATE_QUEUED
    monkeypatch.setattr(QueuedSessions, "_give", give)
    started = set()
    for _ in range(2):
        before = order.replica

        async def has_next(before: agents_pb2.ReplicaId = before) -> bool:
            return [one.replica for one in agent.orders.assignments] not in ([], [before])

        await until(has_next, "another attempt has started")
        [order] = await agent.assignments(1)
        assert [one.digest for one in order.spec.datasets] == [opened]
        started.add(order.replica.session_id)
        await agent.report(order.replica, "RUNNING")
        await agent.report(order.replica, "FINALIZED", cause="COMPLETED")
    assert started == {running.id, waiting.id}


def broken_after(call: Any, times: int) -> Any:
    """A call that fails once it was made so often."""
    left = [times]

    async def limited(*given: Any) -> Any:
        if not left[0]:
            raise Unavailable("the store does not answer")
        left[0] -= 1
        return await call(*given)

    return limited
