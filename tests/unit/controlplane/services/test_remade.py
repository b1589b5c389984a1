"""Users and nodes under the names of others that were removed: nothing of these becomes theirs."""

from __future__ import annotations

import pytest

from controlplane.access.accounts import NAME_RESTS_S
from controlplane.access.records import JOINED
from controlplane.domain.identity import Role
from controlplane.store.interface import Transaction
from nsml.v1 import (
    accounts_pb2,
    datasets_pb2,
    media_pb2,
    projects_pb2,
    resources_pb2,
    secrets_pb2,
    webhooks_pb2,
)
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_clock_set import SetClock
from tests.unit.controlplane.services.test_content import push, read, send, tree
from tests.unit.controlplane.services.test_media import chunk, commit, listed, told
from tests.unit.controlplane.services.test_rights import missing, saved
from tests.unit.controlplane.services.test_sessions import Ingest, refused


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def add(root: Stubs, name: str, *, restore: bool = False) -> accounts_pb2.User:
    request = accounts_pb2.CreateUserRequest(name=name, restore=restore)
    return (await root.accounts.CreateUser(request)).user


async def signed_in(rig: Rig, name: str) -> Stubs:
    token = await rig.plane.core.accounts.create_token(name, 3600)
    return Stubs(await rig.channel(), token.secret.text)


async def remove(root: Stubs, name: str) -> None:
    await root.accounts.DeleteUser(accounts_pb2.DeleteUserRequest(name=name))


async def ended(rig: Rig, agent: Agent, session: str) -> None:
    for assignment in await agent.assignments(1):
        await agent.report(assignment.replica, "FINALIZED", cause="COMPLETED")

    async def has_left() -> bool:
        return rig.plane.core.state.session(session) is None

    await until(has_left, "it is exported")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("live session", "1 live session"),
        ("ended session", "1 ended session"),
        ("dataset", "1 dataset"),
        ("node", "1 node of their own"),
    ],
)
async def test_a_name_goes_to_nobody_while_its_owner_has_something(
    rig: Rig, kind: str, words: str
) -> None:
    root, kim = await rig.user("boss", role=Role.ADMIN), await rig.user("kim")
    match kind:
        case "dataset":
            manifest, blobs = tree(key=b"private")
            await send(kim, blobs)
            await push(kim, "mine", manifest)
        case "node":
            isolation = resources_pb2.ISOLATION_NONE
            await (await rig.agent("kims", owner="kim", isolation=isolation)).connect()
        case _:
            agent = await (await rig.agent()).connect()
            session = await kim.submit()
            if kind == "ended session":
                await ended(rig, agent, session.id)
    await remove(root, "kim")
    code, reason, details = await refused(add(root, "kim"))
    assert (code, reason) == ("ALREADY_EXISTS", "NAME_RESERVED")
    assert words in details["why"]
    assert "--restore" in details["try"]
    # Nor does a project take it, which would count what is left as its own.
    project = root.projects.CreateProject(projects_pb2.CreateProjectRequest(name="kim"))
    assert (await refused(project))[1] == "NAME_RESERVED"
    assert (await add(root, "kim", restore=True)).name == "kim"


async def test_a_restored_user_gets_back_what_they_own_but_no_access(rig: Rig) -> None:
    root, kim = await rig.user("boss", role=Role.ADMIN), await rig.user("kim")
    agent = await (await rig.agent()).connect()
    manifest, blobs = tree(key=b"private")
    await send(kim, blobs)
    await push(kim, "mine", manifest)
    session = await kim.submit(bundle_digest=manifest.digest)
    await agent.assignments(1)
    await send(agent.stubs, blobs, session_id=session.id)
    await agent.stubs.checkpoints.CommitCheckpoint(saved(session.id, manifest.digest))
    await ended(rig, agent, session.id)
    await kim.secrets.SetSecret(secrets_pb2.SetSecretRequest(name="TOKEN", value=b"x"))
    create = projects_pb2.CreateProjectRequest(name="vision", members=["kim"])
    await root.projects.CreateProject(create)
    await remove(root, "kim")
    assert (await refused(kim.get(session.id)))[0] == "UNAUTHENTICATED"
    await add(root, "kim", restore=True)
    assert (await refused(kim.get(session.id)))[0] == "UNAUTHENTICATED"
    again = await signed_in(rig, "kim")
    assert (await again.get(session.id)).owner == "kim"
    get = datasets_pb2.GetDatasetRequest(name="mine")
    assert (await again.datasets.GetDataset(get)).dataset.digest == manifest.digest
    assert await read(again, manifest.digest, *blobs) == blobs
    assert not (await again.secrets.ListSecrets(secrets_pb2.ListSecretsRequest())).secrets
    webhook = await again.webhooks.GetWebhook(webhooks_pb2.GetWebhookRequest())
    assert not webhook.webhook.origin
    assert not (await again.projects.ListProjects(projects_pb2.ListProjectsRequest())).projects


async def test_a_new_user_of_an_old_name_has_nothing_of_the_one_before() -> None:
    clock = SetClock()
    async with platform(clock=clock) as rig:
        root, kim = await rig.user("boss", role=Role.ADMIN), await rig.user("kim")
        first = (await rig.plane.core.accounts.get_user("kim")).id
        manifest, blobs = tree(key=b"private")
        await send(kim, blobs)
        await remove(root, "kim")
        code, reason, details = await refused(add(root, "kim"))
        assert (code, reason) == ("ALREADY_EXISTS", "NAME_RESERVED")
        assert "60 min" in details["why"]
        clock.set_by = NAME_RESTS_S + 1
        root = await signed_in(rig, "boss")
        await add(root, "kim")
        second = (await rig.plane.core.accounts.get_user("kim")).id
        assert second not in {first, "kim"}
        new = await signed_in(rig, "kim")
        assert await missing(new, *blobs, root=manifest.digest) == set(blobs)
        assert (await refused(push(new, "mine", manifest)))[1] == "MISSING_BLOBS"
        # Nodes know users by their ids: files and processes of one are never another's.
        agent = await (await rig.agent()).connect()
        await new.submit()
        [assignment] = await agent.assignments(1)
        assert (assignment.owner, assignment.owner_id) == ("kim", second)


@pytest.mark.parametrize(
    "name", ["root", "admin", "nsml", "nsml-controlplane", "nsml_x", "platform"]
)
async def test_nobody_is_called_like_the_platform(rig: Rig, name: str) -> None:
    root = await rig.user("boss", role=Role.ADMIN)
    assert (await refused(add(root, name)))[0] == "INVALID_ARGUMENT"
    project = root.projects.CreateProject(projects_pb2.CreateProjectRequest(name=name))
    assert (await refused(project))[0] == "INVALID_ARGUMENT"


async def test_another_machine_of_a_nodes_name_speaks_for_no_earlier_session(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    session = await kim.submit()
    await ended(rig, agent, session.id)
    await agent.close()
    manifest, blobs = tree(key=b"x")
    await send(agent.stubs, blobs)
    save = saved(session.id, manifest.digest)
    await agent.stubs.checkpoints.CommitCheckpoint(save)  # late, but of the machine that it ran on
    await rig.on.store.commit(Transaction(success=(JOINED.delete("a"),)))
    other = (await rig.agent()).stubs
    assert await missing(other, *blobs) == set(blobs)
    await send(other, blobs)
    assert (await refused(other.checkpoints.CommitCheckpoint(save)))[0] == "NOT_FOUND"
    shown = commit(session.id, "", media_pb2.MediaContent(file=f"{1:064x}-1", why_lost="x"))
    assert (await refused(other.media.CommitMedia(shown)))[0] == "NOT_FOUND"
    assert await Ingest(other).send(chunk(session.id, 1, told(1))) == [2]
    assert await listed(kim, session.id) == []
