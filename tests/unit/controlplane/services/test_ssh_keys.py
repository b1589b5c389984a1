"""Users' public keys through real gRPC: who adds, sees and removes them, and that each has one owner."""

from __future__ import annotations

import asyncio
import base64

import grpc
import pytest

from controlplane.access.records import SSH_KEYS
from controlplane.domain.identity import Role
from controlplane.ssh_keys.user_keys import MOST_KEYS
from nsml.v1 import ssh_keys_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_sessions import refusal, refused


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
