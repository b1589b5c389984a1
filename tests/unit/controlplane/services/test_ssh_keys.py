"""Users' public keys through real gRPC: who adds, sees and removes them, and that each has one owner."""

from __future__ import annotations

import asyncio
import base64
import copy
import os
from typing import Any

import asyncssh
import grpc
import pytest
from asyncssh.public_key import CERT_TYPE_HOST
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from controlplane.access.records import SSH_KEYS, USERS
from controlplane.access.secret import new_secret
from controlplane.domain.identity import Role
from controlplane.ssh_keys.feature import ssh_authority
from controlplane.ssh_keys.user_keys import MOST_KEYS
from controlplane.tunnels import tunnels
from nsml.spec import agent_services
from nsml.spec.metadata import SSH_KEY
from nsml.spec.ssh_keys import parse_public_key
from nsml.v1 import agents_pb2, sessions_pb2
from nsml.v1 import ssh_keys_pb2 as pb
from tests.unit.controlplane.rig import (
    Agent,
    Rig,
    Stubs,
    platform,
    say_first,
    serving,
    surroundings,
    until,
)
from tests.unit.controlplane.services.test_sessions import refusal, refused
from tests.unit.controlplane.services.test_tunnels import dial, failure, running


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def key(number: int) -> str:
    """A public key of Ed25519."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + number.to_bytes(32, "big")
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


async def add(user: Stubs, line: str, name: str = "") -> pb.SshKey:
    request = pb.AddSshKeyRequest(public_key=line, name=name)
    return (await user.ssh_keys.AddSshKey(request)).key


async def names(user: Stubs, whose: str = "") -> list[str]:
    listed = await user.ssh_keys.ListSshKeys(pb.ListSshKeysRequest(user=whose))
    return [one.name for one in listed.keys]


async def remove(user: Stubs, name: str, whose: str = "") -> None:
    await user.ssh_keys.RemoveSshKey(pb.RemoveSshKeyRequest(name=name, user=whose))


async def test_add_list_remove(rig: Rig) -> None:
    kim = await rig.user("kim")
    made = await add(kim, f"{key(1)} kim@laptop\n")
    assert (made.name, made.public_key) == ("kim@laptop", key(1))
    assert made.fingerprint.startswith("SHA256:")
    assert made.HasField("added_at")
    assert not made.HasField("used_at")
    await add(kim, key(2), "desk")
    assert await names(kim) == ["desk", "kim@laptop"]
    await remove(kim, made.fingerprint)
    assert await names(kim) == ["desk"]
    await add(kim, key(1), "again")
    await remove(kim, "desk")
    assert await names(kim) == ["again"]
    assert (await refused(remove(kim, "desk")))[0] == "NOT_FOUND"


async def test_a_key_is_of_one_user_and_a_name_of_one_key(rig: Rig) -> None:
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await add(kim, key(1), "laptop")
    assert (await refused(add(kim, key(1), "other")))[0] == "ALREADY_EXISTS"
    assert (await refused(add(kim, key(2), "laptop")))[0] == "ALREADY_EXISTS"
    with pytest.raises(grpc.aio.AioRpcError) as taken:
        await add(eve, key(1), "mine")
    assert taken.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert taken.value.details() == "this key is another user's"
    assert "kim" not in str(refusal(taken.value))
    both = await asyncio.gather(
        add(kim, key(3), "k"), add(eve, key(3), "e"), return_exceptions=True
    )
    assert sum(isinstance(one, pb.SshKey) for one in both) == 1


@pytest.mark.parametrize(
    ("line", "name"),
    [("", ""), ("ssh-dss AAAA", ""), (f"no-pty {key(1)}", ""), (key(1), "-x"), (key(1), "a b")],
)
async def test_what_is_refused(rig: Rig, line: str, name: str) -> None:
    kim = await rig.user("kim")
    assert (await refused(add(kim, line, name)))[0] == "INVALID_ARGUMENT"
    assert await names(kim) == []


async def test_there_is_a_most(rig: Rig) -> None:
    kim = await rig.user("kim")
    for number in range(MOST_KEYS):
        await add(kim, key(number))
    assert (await refused(add(kim, key(MOST_KEYS))))[0] == "RESOURCE_EXHAUSTED"
    assert len(await names(kim)) == MOST_KEYS


async def test_each_has_their_own_and_administrators_see_and_remove(rig: Rig) -> None:
    kim, eve = await rig.user("kim"), await rig.user("eve")
    admin = await rig.user("root", role=Role.ADMIN)
    await add(kim, key(1), "laptop")
    assert await names(eve) == []
    assert (await refused(names(eve, "kim")))[0] == "PERMISSION_DENIED"
    assert (await refused(remove(eve, "laptop", "kim")))[0] == "PERMISSION_DENIED"
    assert await names(admin, "kim") == ["laptop"]
    await remove(admin, "laptop", "kim")
    assert await names(kim) == []


async def test_keys_go_with_their_user(rig: Rig) -> None:
    kim = await rig.user("kim")
    await add(kim, key(1), "laptop")
    await rig.plane.core.accounts.delete_user("kim")
    assert (await SSH_KEYS.list(rig.on.store)).items == ()
    assert await names(await rig.user("kim", restore=True)) == []


async def test_what_a_removal_left_belongs_to_nobody(rig: Rig, monkeypatch) -> None:
    """A crash between the removal of the user and of the keys."""
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await add(kim, key(1), "laptop")

    async def dies(_user: str) -> int:
        return 0

    monkeypatch.setattr(rig.plane.core.accounts, "_remove_ssh_keys", dies)
    await rig.plane.core.accounts.delete_user("kim")
    again = await rig.user("kim", restore=True)
    assert await names(again) == []
    assert (await refused(remove(again, "laptop")))[0] == "NOT_FOUND"
    await add(eve, key(1), "found")
    assert await names(eve) == ["found"]


async def test_all_control_planes_say_which_jump_hosts_there_are() -> None:
    async with surroundings() as on, serving(on, member="one", instance="1") as one:
        kim = await one.user("kim")
        code, _, _ = await refused(kim.ssh_keys.GetJumpHost(pb.GetJumpHostRequest()))
        assert code == "FAILED_PRECONDITION"
        jumping = {"instance": "2", "jump_address": "two:22"}
        async with serving(on, member="two", **jumping) as two:
            theirs = await two.also(kim)

            async def known(asked: Stubs) -> list[str]:
                try:
                    answer = await asked.ssh_keys.GetJumpHost(pb.GetJumpHostRequest())
                except grpc.aio.AioRpcError:
                    return []
                return [answer.address, *answer.other_addresses]

            for asked in (kim, theirs):
                found = await until(lambda asked=asked: known(asked), "it is known")
                assert found == ["two:22"]


# -- by a jump host -------------------------------------------------------------------------------


def for_key(rig: Rig, user: Stubs, line: str) -> Stubs:
    """The jump host's calls for the user of a key."""
    secret = new_secret(os.urandom)
    rig.plane.core.identities.admit_jump_host(secret)
    said = (("authorization", f"Bearer {secret.text}"), (SSH_KEY, parse_public_key(line).digest))
    made = copy.copy(user)
    made.metadata = said
    made.sessions = type(user.sessions)(user.sessions._stub, said)
    made.ssh_keys = type(user.ssh_keys)(user.ssh_keys._stub, said)
    return made


async def opened(
    jump_host: Stubs, session: str, host: str, service: str = agent_services.SSH
) -> Any:
    call = jump_host.sessions._stub.OpenTunnel(metadata=jump_host.metadata, timeout=60)
    target = sessions_pb2.TunnelTarget(session=session, service=service, ssh_host=host)
    await say_first(call, sessions_pb2.OpenTunnelRequest(target=target))
    return call


async def test_the_server_asks_for_the_users_own_keys_and_has_a_certificate(rig: Rig) -> None:
    kim, eve = await rig.user("kim"), await rig.user("eve")
    for number, user in ((1, kim), (2, kim), (3, eve)):
        await add(user, key(number), f"k{number}")
    agent, session = await running(rig, kim)
    jump_host = for_key(rig, kim, key(1))
    checked = await jump_host.ssh_keys.GetSshKeyUser(pb.GetSshKeyUserRequest())
    assert checked.user == "kim"
    call = await opened(jump_host, session.id, f"{session.id}.nsml")
    await until(lambda: _asked(agent), "the agent is asked")
    [order] = agent.tunnels
    assert (order.service, order.user) == (agent_services.SSH, "kim")
    entrance = order.ssh_entrance
    digests = {parse_public_key(key(number)).digest for number in (1, 2)}
    assert {one.hex() for one in entrance.authorized_keys} == digests
    certificate = asyncssh.import_certificate(entrance.certificate)
    assert certificate.signing_key == await trusted_by(rig, "kim")
    # what eve's session proves itself with means nothing to kim's client, whatever name it is for
    assert certificate.signing_key != await trusted_by(rig, "eve")
    certificate.validate(CERT_TYPE_HOST, f"{session.id}.nsml")
    with pytest.raises(ValueError, match="principal"):
        certificate.validate(CERT_TYPE_HOST, "12.nsml")
    pair = Ed25519PrivateKey.from_private_bytes(entrance.host_key).public_key()
    assert certificate.key.public_data.endswith(pair.public_bytes_raw())
    call.cancel()
    # each connection has another key; that it was used is known
    again = await opened(jump_host, session.id, f"{session.id}.nsml")
    await until(lambda: _asked_twice(agent), "the agent is asked again")
    assert agent.tunnels[1].ssh_entrance.host_key != entrance.host_key
    again.cancel()
    listed = await kim.ssh_keys.ListSshKeys(pb.ListSshKeysRequest())
    assert [one.HasField("used_at") for one in listed.keys] == [True, False]


async def trusted_by(rig: Rig, user: str) -> asyncssh.SSHKey:
    """The key by which a user's clients know sessions."""
    found = await USERS.get(rig.plane.core.store, user)
    assert found is not None
    return asyncssh.import_public_key(rig.plane.core.shared(ssh_authority).public_key(found.value))


async def _asked(agent: Agent) -> bool:
    return bool(agent.tunnels)


async def _asked_twice(agent: Agent) -> bool:
    return len(agent.tunnels) == 2


async def test_it_leads_to_nothing_else(rig: Rig) -> None:
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await add(kim, key(1), "laptop")
    await add(eve, key(2), "laptop")
    agent, session = await running(rig, kim)
    own, other = for_key(rig, kim, key(1)), f"{session.id}.nsml"
    for service in (agent_services.PROGRAM, agent_services.FILES, "web", "8888"):
        call = await opened(own, session.id, other, service)
        assert (await failure(call))[0] == "PERMISSION_DENIED", service
    # a certificate for one name never leads to another session
    for host in ("", "*.nsml", "last.nsml", "1.12.nsml", f"1.{session.id}.nsml", "x"):
        assert (await failure(await opened(own, session.id, host)))[0] == "INVALID_ARGUMENT", host
    of_eve = for_key(rig, eve, key(2))
    assert (await failure(await opened(of_eve, session.id, other)))[0] == "NOT_FOUND"
    assert agent.tunnels == []


async def test_a_removed_key_ends_what_is_open(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr(tunnels, "LOOKS_EVERY_S", 0.05)
    kim = await rig.user("kim")
    await add(kim, key(1), "laptop")
    agent, session = await running(rig, kim)
    call = await opened(for_key(rig, kim, key(1)), session.id, f"{session.id}.nsml")
    program = await dial(agent)
    assert await call.read() == sessions_pb2.OpenTunnelResponse()
    await remove(kim, "laptop")
    assert (await failure(call))[0] == "UNAUTHENTICATED"
    program.cancel()


async def test_an_older_agent_would_let_anybody_in(rig: Rig) -> None:
    kim = await rig.user("kim")
    await add(kim, key(1), "laptop")
    abilities = [agents_pb2.AGENT_ABILITY_SERVICES]
    agent = await (await rig.agent("old", abilities=abilities, agent_version="0.1.0")).connect()
    session = await kim.submit()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await kim.reaches(session.id, "RUNNING")
    call = await opened(for_key(rig, kim, key(1)), session.id, f"{session.id}.nsml")
    assert (await failure(call))[0] == "FAILED_PRECONDITION"
    assert agent.tunnels == []
