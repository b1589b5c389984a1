"""Environments of nodes: who sees and removes which, with an agent that answers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from controlplane.domain.identity import Role
from nsml.v1 import agents_pb2, resources_pb2, secrets_pb2
from nsml.v1 import environments_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform
from tests.unit.controlplane.services.test_sessions import refused

KIM, LEE, ALL, OLD = "1" * 32, "2" * 32, "3" * 32, "4" * 32
USED = "a session uses it, or it is being built"


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def listed(who: Stubs, node: str = "a") -> dict[str, resources_pb2.NodeEnvironment]:
    answer = await who.environments.ListEnvironments(pb.ListEnvironmentsRequest(node=node))
    return {one.key: one for one in answer.environments}


async def remove(who: Stubs, key: str) -> None:
    await who.environments.RemoveEnvironment(pb.RemoveEnvironmentRequest(node="a", key=key))


async def connected(rig: Rig, owners: Mapping[str, str], sessions: list[str]) -> Agent:
    """An agent with these environments, by key the name of the owner; Kim's is used by `sessions`."""
    ids = {name: one for one, name in rig.plane.core.identities.ids().items()}
    there = dict(owners)

    def answer(order: agents_pb2.EnvironmentOrder) -> agents_pb2.EnvironmentReport:
        report = agents_pb2.EnvironmentReport(order_id=order.order_id)
        if order.remove:
            whose = ids.get(there.get(order.remove, ""), "")
            if order.owner_id and whose not in {order.owner_id, ""}:
                return report
            if order.remove == KIM or (order.owner_id and not whose):
                report.environments.add(key=order.remove, for_all=not whose)
                report.words = USED
            else:
                report.removed = there.pop(order.remove, None) is not None
            return report
        for key, owner in there.items():
            one = report.environments.add(key=key, for_all=key == ALL, owner="somebody")
            one.owner_id = ids.get(owner, "")
            one.sessions.extend([*sessions, "unknown"] if key == KIM else [])
        return report

    agent = await rig.agent()
    agent.about_environments = answer
    return await agent.connect()


async def test_users_see_and_remove_their_own_and_administrators_all(rig: Rig) -> None:
    kim, lee, root = (
        await rig.user("kim"),
        await rig.user("lee"),
        await rig.user("root", role=Role.ADMIN),
    )
    sessions: list[str] = []
    await connected(rig, {KIM: "kim", LEE: "lee", ALL: "", OLD: ""}, sessions)
    mine = await kim.submit(visibility=resources_pb2.VISIBILITY_PUBLIC)
    hidden = await lee.submit()
    sessions += [mine.id, hidden.id]
    seen = await listed(kim)
    assert set(seen) == {KIM, ALL}
    assert (seen[KIM].owner, seen[KIM].owner_id, seen[ALL].owner) == ("kim", "", "")
    # One that is not known is told of as one of others.
    assert (list(seen[KIM].sessions), seen[KIM].hidden_sessions) == (["kim/None/1"], 2)
    assert set(await listed(root)) == {KIM, LEE, ALL, OLD}
    assert (await refused(remove(kim, LEE)))[0] == "NOT_FOUND"
    assert (await refused(remove(kim, ALL)))[0] == "PERMISSION_DENIED"
    code, _, told = await refused(remove(kim, KIM))
    assert (code, told["why"]) == ("FAILED_PRECONDITION", USED)
    await remove(lee, LEE)
    await remove(root, ALL)
    assert set(await listed(root)) == {KIM, OLD}


async def test_users_are_shown_theirs_alone_whatever_an_agent_says(rig: Rig) -> None:
    kim = await rig.user("kim")
    root = await rig.user("root", role=Role.ADMIN)
    agent = await rig.agent()
    orders: list[agents_pb2.EnvironmentOrder] = []

    def answer(order: agents_pb2.EnvironmentOrder) -> agents_pb2.EnvironmentReport:
        orders.append(order)
        report = agents_pb2.EnvironmentReport(order_id=order.order_id)
        report.environments.add(key=LEE, owner_id="somebody")
        return report

    agent.about_environments = answer
    await agent.connect()
    assert await listed(kim) == {}
    assert set(await listed(root)) == {LEE}
    ids = {name: one for one, name in rig.plane.core.identities.ids().items()}
    assert [order.owner_id for order in orders] == [ids["kim"], ""]


async def test_what_an_agent_cannot_do_is_said(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await rig.agent()
    agent.about_environments = lambda order: agents_pb2.EnvironmentReport(
        order_id=order.order_id, words="too many orders wait there"
    )
    await agent.connect()
    code, _, told = await refused(listed(kim))
    assert (code, told["why"]) == ("UNAVAILABLE", "too many orders wait there")
    code, _, told = await refused(remove(kim, KIM))
    assert (code, told["why"]) == ("FAILED_PRECONDITION", "too many orders wait there")


async def test_what_cannot_be_asked_is_told(rig: Rig) -> None:
    kim = await rig.user("kim")
    assert (await refused(listed(kim, "nowhere")))[0] == "NOT_FOUND"
    old = await rig.agent("old", abilities=[agents_pb2.AGENT_ABILITY_IMAGES])
    await old.connect()
    assert (await refused(listed(kim, "old")))[0] == "FAILED_PRECONDITION"


async def test_builds_are_those_of_the_caller_on_nodes_that_run_sessions_of_theirs(
    rig: Rig,
) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    orders: list[agents_pb2.EnvironmentOrder] = []

    def answer(order: agents_pb2.EnvironmentOrder) -> agents_pb2.EnvironmentReport:
        orders.append(order)
        build = resources_pb2.EnvironmentBuild(
            build_id=order.build.build_id or order.order_id,
            state=resources_pb2.ENVIRONMENT_BUILD_STATE_RUNNING,
            log=b"x" * (1 << 20),
        )
        return agents_pb2.EnvironmentReport(order_id=order.order_id, build=build)

    agent = await rig.agent()
    agent.about_environments = answer
    await agent.connect()
    files = resources_pb2.EnvironmentFiles(texts={"requirements.txt": "six"}, entry="main.py")
    request = pb.BuildEnvironmentRequest(node="a", files=files)
    begun = (await root.environments.BuildEnvironment(request)).build
    look = pb.GetEnvironmentBuildRequest(
        node="a", build_id=begun.build_id, log_offset=7, cancel=True
    )
    found = (await kim.environments.GetEnvironmentBuild(look)).build
    assert (found.build_id, len(found.log)) == (begun.build_id, 64 << 10)
    ids = {name: one for one, name in rig.plane.core.identities.ids().items()}
    assert [one.owner_id for one in orders] == [ids["root"], ids["kim"]]
    assert (orders[0].build.files, orders[0].build.cancel) == (files, False)
    assert (orders[1].build.log_offset, orders[1].build.cancel) == (7, True)
    odd = resources_pb2.EnvironmentFiles(texts={"requirements" * 100: ""})
    named = pb.BuildEnvironmentRequest(node="a", files=odd)
    assert (await refused(kim.environments.BuildEnvironment(named)))[0] == "INVALID_ARGUMENT"
    files.texts["uv.lock"] = "x" * (3 << 20)
    large = pb.BuildEnvironmentRequest(node="a", files=files)
    assert (await refused(kim.environments.BuildEnvironment(large)))[0] == "RESOURCE_EXHAUSTED"
    recipe = [resources_pb2.ContextFile(path="Dockerfile", content=b"FROM a")]
    for wrong in (
        resources_pb2.EnvironmentFiles(context=recipe),
        resources_pb2.EnvironmentFiles(dockerfile="other", context=recipe),
        resources_pb2.EnvironmentFiles(
            dockerfile="Dockerfile", context=[*recipe, resources_pb2.ContextFile(path="../x")]
        ),
        resources_pb2.EnvironmentFiles(
            dockerfile="Dockerfile", context=recipe, build_arguments={"1": ""}
        ),
    ):
        named = pb.BuildEnvironmentRequest(node="a", files=wrong)
        assert (await refused(kim.environments.BuildEnvironment(named)))[0] == "INVALID_ARGUMENT"
    files = resources_pb2.EnvironmentFiles(dockerfile="Dockerfile", context=recipe)
    plain = await rig.agent("plain", isolation=resources_pb2.ISOLATION_NAMESPACE)
    await plain.connect()
    bare = pb.BuildEnvironmentRequest(node="plain", files=files)
    code, _, told = await refused(kim.environments.BuildEnvironment(bare))
    assert (code, told["why"]) == ("FAILED_PRECONDITION", "it runs programs without containers")
    old = await rig.agent("old", abilities=[agents_pb2.AGENT_ABILITY_ENVIRONMENTS])
    await old.connect()
    on_old = pb.BuildEnvironmentRequest(node="old")
    assert (await refused(kim.environments.BuildEnvironment(on_old)))[0] == "FAILED_PRECONDITION"
    owned = await rig.agent("owned", isolation=resources_pb2.ISOLATION_NONE)
    owned.about_environments = answer
    await owned.connect()
    on_owned = pb.BuildEnvironmentRequest(node="owned")
    assert (await refused(kim.environments.BuildEnvironment(on_owned)))[0] == "FAILED_PRECONDITION"
    assert len(orders) == 2
    assert not any(order.build.registry_logins for order in orders)


async def test_an_agent_that_builds_dockerfiles_for_sessions_alone_is_asked_for_no_build(
    rig: Rig,
) -> None:
    kim = await rig.user("kim")
    orders: list[agents_pb2.EnvironmentOrder] = []

    def answer(order: agents_pb2.EnvironmentOrder) -> agents_pb2.EnvironmentReport:
        orders.append(order)
        return agents_pb2.EnvironmentReport(order_id=order.order_id)

    old = [
        agents_pb2.AGENT_ABILITY_ENVIRONMENTS,
        agents_pb2.AGENT_ABILITY_ENVIRONMENT_BUILDS,
        agents_pb2.AGENT_ABILITY_DOCKERFILES,
    ]
    recipe = resources_pb2.ContextFile(path="Dockerfile", content=b"FROM a")
    files = resources_pb2.EnvironmentFiles(dockerfile="Dockerfile", context=[recipe])
    for name, abilities in (
        ("old", old),
        ("new", [*old, agents_pb2.AGENT_ABILITY_DOCKERFILE_BUILDS]),
    ):
        agent = await rig.agent(
            name, isolation=resources_pb2.ISOLATION_CONTAINER, abilities=abilities
        )
        agent.about_environments = answer
        await agent.connect()
    on_old = pb.BuildEnvironmentRequest(node="old", files=files)
    code, _, told = await refused(kim.environments.BuildEnvironment(on_old))
    assert code == "FAILED_PRECONDITION"
    assert "builds of Dockerfiles before a session needs them" in told["why"]
    assert not orders
    await kim.environments.BuildEnvironment(pb.BuildEnvironmentRequest(node="new", files=files))
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("abilities", "given"),
    [
        ([agents_pb2.AGENT_ABILITY_DOCKERFILES], ["lab.example", "other.example"]),
        ([], []),
    ],
)
async def test_logins_go_with_a_build_to_nodes_with_containers_that_know_them(
    rig: Rig, abilities: list[agents_pb2.AgentAbility], given: list[str]
) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    for who, registry in ((kim, "lab.example"), (kim, "other.example"), (lee, "lee.example")):
        login = secrets_pb2.SetRegistryLoginRequest(
            registry=registry, registry_user="me", password=b"pw"
        )
        await who.secrets.SetRegistryLogin(login)
    orders: list[agents_pb2.EnvironmentOrder] = []

    def answer(order: agents_pb2.EnvironmentOrder) -> agents_pb2.EnvironmentReport:
        orders.append(order)
        return agents_pb2.EnvironmentReport(order_id=order.order_id)

    known = [
        *abilities,
        agents_pb2.AGENT_ABILITY_ENVIRONMENTS,
        agents_pb2.AGENT_ABILITY_ENVIRONMENT_BUILDS,
    ]
    for name, isolation in (
        ("a", resources_pb2.ISOLATION_CONTAINER),
        ("b", resources_pb2.ISOLATION_NAMESPACE),
    ):
        agent = await rig.agent(name, isolation=isolation, abilities=known)
        agent.about_environments = answer
        await agent.connect()
        await kim.environments.BuildEnvironment(pb.BuildEnvironmentRequest(node=name))
    await kim.environments.GetEnvironmentBuild(pb.GetEnvironmentBuildRequest(node="a"))
    on_a, on_b, look = (order.build.registry_logins for order in orders)
    assert sorted(one.registry for one in on_a) == given
    assert [*on_b, *look] == []
