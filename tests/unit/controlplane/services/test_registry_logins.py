"""Logins at registries through real gRPC: who sets and sees them, and which node is told a password."""

from __future__ import annotations

import asyncio

import pytest

from nsml.v1 import agents_pb2, resources_pb2
from nsml.v1 import secrets_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services.test_node_images import answers, ordered, pull
from tests.unit.controlplane.services.test_sessions import refused

MARK = b"hush-7f1c"
CONTAINERS = {"isolation": resources_pb2.ISOLATION_CONTAINER}


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


def login(user: Stubs, registry: str = "ghcr.io", name: str = "kim", password: bytes = MARK):
    request = pb.SetRegistryLoginRequest(registry=registry, registry_user=name, password=password)
    return user.secrets.SetRegistryLogin(request)


def logout(user: Stubs, registry: str, whose: str = ""):
    request = pb.RemoveRegistryLoginRequest(registry=registry, user=whose)
    return user.secrets.RemoveRegistryLogin(request)


async def listed(user: Stubs, whose: str = "") -> list[tuple[str, str]]:
    answer = await user.secrets.ListRegistryLogins(pb.ListRegistryLoginsRequest(user=whose))
    assert MARK not in answer.SerializeToString()
    return [(one.registry, one.registry_user) for one in answer.logins]


async def test_logins_are_set_listed_and_removed_and_are_no_secrets(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    assert (await login(kim)).login.registry == "ghcr.io"
    await login(kim, "https://index.docker.io/v1/", "kimmy")
    await login(kim, name="kim2")
    assert await listed(kim) == [("docker.io", "kimmy"), ("ghcr.io", "kim2")]
    assert await listed(lee) == []
    assert (
        await refused(kim.secrets.ListRegistryLogins(pb.ListRegistryLoginsRequest(user="lee")))
    )[0] == "PERMISSION_DENIED"
    secrets = await kim.secrets.ListSecrets(pb.ListSecretsRequest())
    assert not secrets.secrets
    remove = pb.RemoveSecretRequest(name="registry-login:ghcr.io")
    assert (await refused(kim.secrets.RemoveSecret(remove)))[0] == "NOT_FOUND"
    await logout(kim, "docker.io")
    assert (await refused(logout(kim, "docker.io")))[0] == "NOT_FOUND"
    assert await listed(kim) == [("ghcr.io", "kim2")]
    items = (await rig.on.store.list("")).items
    assert not any(MARK in item.value for item in items)


@pytest.mark.parametrize(
    ("registry", "name", "password"),
    [
        ("lab", "kim", MARK),
        ("a/b", "kim", MARK),
        ("169.254.169.254:80", "kim", MARK),
        ("ghcr.io/../user/root", "kim", MARK),
        ("ghcr.io", "", MARK),
        ("ghcr.io", "k\nim", MARK),
        ("ghcr.io", "kim", b""),
        ("ghcr.io", "kim", b"\xff"),
    ],
)
async def test_what_is_no_login_is_refused(
    rig: Rig, registry: str, name: str, password: bytes
) -> None:
    kim = await rig.user("kim")
    code, message, details = await refused(login(kim, registry, name, password))
    assert code == "INVALID_ARGUMENT"
    assert MARK.decode() not in f"{message} {details}"


async def test_a_node_is_told_the_logins_for_the_image_of_a_session_of_their_user(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    for registry in ("ghcr.io", "ghcr.io:5000", "quay.io"):
        await login(kim, registry)
    await login(lee, "quay.io", "lee")
    await kim.submit(image="ghcr.io/kim/x:1")
    await kim.submit()
    agent = await (await rig.agent(**CONTAINERS)).connect()
    named, unknown = sorted(await agent.assignments(2), key=lambda one: not one.spec.image)
    [told] = named.registry_logins
    assert (told.registry, told.user, told.password) == ("ghcr.io", "kim", MARK.decode())
    assert told.version > 0
    # its code may name an image of any of them
    assert len(unknown.registry_logins) == 3


async def test_an_older_agent_which_would_write_them_down_is_told_none(rig: Rig) -> None:
    kim = await rig.user("kim")
    await login(kim)
    await kim.submit(image="ghcr.io/kim/x:1")
    knows = [agents_pb2.AGENT_ABILITY_IMAGES, agents_pb2.AGENT_ABILITY_ENVIRONMENTS]
    agent = await (await rig.agent("old", abilities=knows, **CONTAINERS)).connect()
    [assignment] = await agent.assignments(1)
    assert not assignment.registry_logins
    pulling = asyncio.ensure_future(pull(kim, "old", "ghcr.io/kim/x:1"))
    order = await ordered(agent)
    assert not order.registry_logins
    await answers(agent, order, state=resources_pb2.IMAGE_STATE_PULLING)
    await pulling


async def test_a_node_without_containers_is_told_none(rig: Rig) -> None:
    kim = await rig.user("kim")
    await login(kim)
    await kim.submit()
    agent = await (await rig.agent()).connect()
    [assignment] = await agent.assignments(1)
    assert not assignment.registry_logins
