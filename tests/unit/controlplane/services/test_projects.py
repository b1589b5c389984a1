"""Projects through real gRPC: who makes, sees and changes them, and what they let start."""

from __future__ import annotations

import math
from typing import Any

import grpc
import grpc.aio
import pytest

from controlplane.domain.identity import Role
from controlplane.projects.projects import MOST_AT_ONCE
from nsml.v1 import accounts_pb2, resources_pb2, sessions_pb2
from nsml.v1 import projects_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_sessions import refused

GPU = resources_pb2.Resources(gpu_thousandths=1000, cpu_thousandths=1000, memory_bytes=10**9)
TWO = resources_pb2.Resources(gpu_thousandths=2000, cpu_thousandths=1000, memory_bytes=10**9)


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def admin(rig: Rig) -> Stubs:
    return await rig.user("root", role=Role.ADMIN)


async def create(
    who: Stubs, name: str = "vision", members: tuple[str, ...] = (), **settings: Any
) -> pb.Project:
    request = pb.CreateProjectRequest(
        name=name, settings=pb.ProjectSettings(**settings), members=members
    )
    return (await who.projects.CreateProject(request)).project


async def update(
    who: Stubs, name: str = "vision", *, without_budget: bool = False, **settings: Any
) -> pb.Project:
    request = pb.UpdateProjectRequest(
        name=name, settings=pb.ProjectSettings(**settings), without_budget=without_budget
    )
    return (await who.projects.UpdateProject(request)).project


async def members(who: Stubs, name: str = "vision", **changes: tuple[str, ...]) -> list[str]:
    request = pb.ChangeMembersRequest(name=name, **changes)
    return list((await who.projects.ChangeMembers(request)).project.members)


async def get(who: Stubs, name: str = "vision") -> pb.GetProjectResponse:
    return await who.projects.GetProject(pb.GetProjectRequest(name=name))


async def names(who: Stubs) -> list[str]:
    return [
        one.name for one in (await who.projects.ListProjects(pb.ListProjectsRequest())).projects
    ]


async def test_projects_are_listed_in_pages(rig: Rig) -> None:
    """A page has as many as are asked for, whatever the caller does not see."""
    root = await admin(rig)
    kim = await rig.user("kim")
    every = [f"p{number}" for number in range(7)]
    own = every[::2]
    for name in every:
        await create(root, name, members=("kim",) if name in own else ())
    for who, seen in ((root, every), (kim, own)):
        assert await names(who) == seen
        for size in range(1, len(seen) + 2):
            request, found = pb.ListProjectsRequest(page_size=size), []
            while True:
                page = await who.projects.ListProjects(request)
                found.append([one.name for one in page.projects])
                request.cursor = page.next_cursor
                if not request.cursor:
                    break
            assert found == [seen[at : at + size] for at in range(0, len(seen), size)]
    first = await root.projects.ListProjects(pb.ListProjectsRequest(page_size=2))
    await root.projects.DeleteProject(pb.DeleteProjectRequest(name="p1"))
    rest = pb.ListProjectsRequest(page_size=2, cursor=first.next_cursor)
    assert [one.name for one in (await root.projects.ListProjects(rest)).projects] == ["p2", "p3"]
    wrong = root.projects.ListProjects(pb.ListProjectsRequest(cursor="none of ours"))
    assert (await refused(wrong))[0] == "INVALID_ARGUMENT"


async def test_made_shown_changed_and_removed(rig: Rig) -> None:
    root = await admin(rig)
    for name in ("kim", "lee"):
        await rig.user(name)
    made = await create(
        root,
        members=("lee",),
        owner="kim",
        quota=pb.Quota(gpu_thousandths=16_000, sessions=4),
        budget=pb.Budget(gpu_seconds=3600.0),
        weight=2.0,
        most_priority=sessions_pb2.PRIORITY_NORMAL,
    )
    assert list(made.members) == ["kim", "lee"]
    assert made.settings.budget.period_days == 30
    assert made.settings.budget.anchor.ToSeconds() == made.created_at.ToSeconds()
    assert not made.settings.quota.HasField("memory_bytes")
    changed = await update(root, quota=pb.Quota(gpu_thousandths=0, cpu_thousandths=5))
    assert changed.settings.quota == pb.Quota(cpu_thousandths=5, sessions=4)
    assert changed.settings.budget == made.settings.budget
    assert (changed.settings.weight, changed.settings.owner) == (2.0, "kim")
    more = await update(root, budget=pb.Budget(gpu_seconds=7200.0))
    assert more.settings.budget.anchor == made.settings.budget.anchor
    assert not (await update(root, without_budget=True)).settings.HasField("budget")
    shown = (await get(root)).project
    assert shown.settings == (await update(root)).settings
    [listed] = (await root.projects.ListProjects(pb.ListProjectsRequest())).projects
    assert (listed.member_count, list(listed.members)) == (2, [])
    await root.projects.DeleteProject(pb.DeleteProjectRequest(name="vision"))
    assert await names(root) == []
    assert (await refused(get(root)))[0] == "NOT_FOUND"


async def test_a_users_own_project_is_set_without_being_created(rig: Rig) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    # `root` is a name that no new user and no new project may have; who has it has a project all the same.
    for name in ("root", "kim"):
        made = await update(root, name, keep_checkpoints="last:1", weight=2.0)
        assert (made.settings.owner, list(made.members)) == (name, [name])
        shown = (await get(root, name)).project
        assert (shown.settings.keep_checkpoints, shown.settings.weight) == ("last:1", 2.0)
        code, *_ = await refused(update(root, name, owner="kim" if name == "root" else "root"))
        assert code == "FAILED_PRECONDITION"
    assert (await get(kim, "kim")).project.settings.keep_checkpoints == "last:1"
    assert (await update(root, "kim", keep_files="on")).settings.keep_checkpoints == "last:1"
    await root.projects.DeleteProject(pb.DeleteProjectRequest(name="root"))
    assert (await create(root, "root", owner="root")).members == ["root"]
    # Nobody sets what they may have themselves, and nobody's project comes of a typing error.
    assert (await refused(update(kim, "kim", weight=3.0)))[0] == "PERMISSION_DENIED"
    assert (await refused(update(root, "lee", weight=3.0)))[0] == "NOT_FOUND"
    lee = await rig.user("lee")
    code, _, told = await refused(members(lee, "lee", add=("kim",)))
    assert (code, told["why"]) == (
        "FAILED_PRECONDITION",
        "only administrators make it one with members",
    )
    assert await members(root, "lee", add=("kim",)) == ["kim", "lee"]


async def test_members_see_it_its_owner_says_who_they_are_and_nobody_else_knows_of_it(
    rig: Rig,
) -> None:
    root = await admin(rig)
    kim, lee, eve = [await rig.user(name) for name in ("kim", "lee", "eve")]
    await create(root, owner="kim", members=("lee",))
    for who in (root, kim, lee):
        assert await names(who) == ["vision"]
        assert (await get(who)).project.name == "vision"
    assert await names(eve) == []
    hidden = await refused(get(eve))
    assert hidden[0] == "NOT_FOUND"
    assert hidden == await refused(get(eve, "nothing"))
    assert hidden == await refused(members(eve, add=("eve",)))
    assert (await refused(members(lee, add=("eve",))))[0] == "PERMISSION_DENIED"
    assert await members(kim, add=("eve",)) == ["eve", "kim", "lee"]
    assert await names(eve) == ["vision"]
    assert await members(kim, remove=("eve", "lee")) == ["kim"]
    for changes, unchanged in (
        ({"remove": ("eve", "nobody")}, ["eve", "nobody"]),
        ({"add": ("kim", "lee")}, ["kim"]),
        ({"add": ("lee",), "remove": ("lee",)}, []),
    ):
        request = pb.ChangeMembersRequest(name="vision", **changes)
        assert list((await kim.projects.ChangeMembers(request)).unchanged) == unchanged
    assert await members(kim, remove=("eve",)) == ["kim"]
    assert (await refused(members(kim, remove=("kim",))))[0] == "FAILED_PRECONDITION"
    for call in (create(kim, "own"), update(kim, weight=2.0)):
        assert (await refused(call))[0] == "PERMISSION_DENIED"
    assert await members(root, add=("lee",)) == ["kim", "lee"]
    assert (await update(root, owner="lee")).settings.owner == "lee"
    assert (await refused(members(kim, add=("eve",))))[0] == "PERMISSION_DENIED"


async def test_ones_own_project_is_shown_without_a_record(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    shown = (await get(kim, "kim")).project
    assert (shown.name, shown.settings.owner, list(shown.members)) == ("kim", "kim", ["kim"])
    assert (shown.settings.quota, shown.settings.weight) == (pb.Quota(), 1.0)
    assert not shown.HasField("created_at")
    assert await names(kim) == []
    assert (await refused(get(lee, "kim")))[0] == "NOT_FOUND"
    for who, code in ((kim, "FAILED_PRECONDITION"), (lee, "NOT_FOUND")):
        assert (await refused(members(who, "kim", add=("lee",))))[0] == code


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": pb.Budget(gpu_seconds=0.0)},
        {"budget": pb.Budget(gpu_seconds=-1.0)},
        {"budget": pb.Budget(gpu_seconds=math.nan)},
        {"budget": pb.Budget(gpu_seconds=math.inf)},
        {"budget": pb.Budget(gpu_seconds=1e300)},
        {"budget": pb.Budget(period_days=30)},
        {"budget": pb.Budget(gpu_seconds=1.0, period_days=0)},
        {"budget": pb.Budget(gpu_seconds=1.0, period_days=1 << 31)},
        {"budget": pb.Budget(gpu_seconds=1.0, anchor={"seconds": -5})},
        {"budget": pb.Budget(gpu_seconds=1.0, anchor={"seconds": 10**15})},
        {"weight": 0.0},
        {"weight": -1.0},
        {"weight": math.nan},
        {"weight": 1001.0},
        {"quota": pb.Quota(memory_bytes=(1 << 64) - 1)},
        {"member_quota": pb.Quota(gpu_thousandths=1 << 63)},
        {"most_priority": 9},
    ],
)
async def test_settings_that_cannot_be_are_refused(rig: Rig, settings: dict[str, Any]) -> None:
    root = await admin(rig)
    assert (await refused(create(root, **settings)))[0] == "INVALID_ARGUMENT"
    assert await names(root) == []
    await create(root)
    before = (await get(root)).project
    assert (await refused(update(root, **settings)))[0] == "INVALID_ARGUMENT"
    assert (await get(root)).project == before


@pytest.mark.parametrize(
    ("settings", "why", "attempt"),
    [
        ({"weight": 0.0}, "at most 1000", "--weight 1"),
        ({"weight": 1001.0}, "at most 1000", "--weight 1000"),
        (
            {"budget": pb.Budget(gpu_seconds=1e15 * 3600)},
            "at most 8,760,000,000",
            "--gpu-hours 500\n--gpu-hours none    without a budget",
        ),
        (
            {"budget": pb.Budget(gpu_seconds=1.0, period_days=9999)},
            "it is 1 to 3660 days",
            "--period 3660d",
        ),
        (
            {"budget": pb.Budget(gpu_seconds=1.0, anchor={"seconds": -2208988800})},
            "from 1970-01-01 to 5138-11-16",
            "--from 20",
        ),
    ],
)
async def test_settings_that_cannot_be_are_refused_with_ones_that_can(
    rig: Rig, settings: dict[str, Any], why: str, attempt: str
) -> None:
    root = await admin(rig)
    _, _, details = await refused(create(root, **settings))
    assert details["why"].endswith(why)
    assert details["try"].startswith(attempt)


async def test_a_name_that_cannot_be_is_refused_with_one_that_can(rig: Rig) -> None:
    root = await admin(rig)
    for name, meant in (("bad name!", "bad-name"), ("9 Lives", "lives"), ("!", "vision")):
        _, _, details = await refused(create(root, name))
        assert details["try"] == f"nsml project create {meant}"
        await create(root, meant)


async def test_nobody_is_told_to_run_what_only_administrators_may(rig: Rig) -> None:
    root, kim = await admin(rig), await rig.user("kim")
    await create(root, owner="kim")
    for who, attempt in ((root, "nsml admin user ls"), (kim, "ask them, or an administrator")):
        _, _, details = await refused(members(who, add=("nobody",)))
        assert details["try"].startswith(attempt)
    for who, attempt in (
        (root, "nsml project set vision --owner"),
        (kim, "an administrator names"),
    ):
        _, _, details = await refused(members(who, remove=("kim",)))
        assert details["why"]
        assert details["try"].startswith(attempt)


async def test_names_and_members_that_cannot_be_are_refused(rig: Rig) -> None:
    root = await admin(rig)
    await rig.user("kim")
    for name in ("", "Vision", "a/b", "x" * 33, "..", "0"):
        assert (await refused(create(root, name)))[0] == "INVALID_ARGUMENT"
    assert (await refused(create(root, owner="nobody")))[0] == "NOT_FOUND"
    assert (await refused(create(root, members=("nobody",))))[0] == "NOT_FOUND"
    many = tuple(f"u{number}" for number in range(MOST_AT_ONCE + 1))
    assert (await refused(create(root, members=many)))[0] == "RESOURCE_EXHAUSTED"
    await create(root)
    assert (await refused(create(root)))[0] == "ALREADY_EXISTS"
    for name in ("nobody", "../x"):
        assert (await refused(members(root, add=(name,))))[0] in {"NOT_FOUND", "INVALID_ARGUMENT"}
    assert (await refused(update(root, owner="nobody")))[0] == "NOT_FOUND"
    assert (await get(root)).project.settings.owner == ""


async def test_a_users_name_is_that_of_their_own_project(rig: Rig) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    assert (await refused(create(root, "kim")))[0] == "ALREADY_EXISTS"
    await create(root, "kim", owner="kim", quota=pb.Quota(gpu_thousandths=1000))
    assert (await refused(update(root, "kim", owner="root")))[0] == "FAILED_PRECONDITION"
    code, _, details = await refused(kim.submit(resources=TWO))
    assert (code, details["try"]) == ("FAILED_PRECONDITION", "nsml run -g 1 ...")
    assert (await kim.submit(resources=GPU)).project == "kim"
    await create(root, "vision")
    user = root.accounts.CreateUser(accounts_pb2.CreateUserRequest(name="vision"))
    assert (await refused(user))[0] == "ALREADY_EXISTS"


async def test_who_is_removed_is_a_member_of_nothing_and_neither_is_their_namesake(
    rig: Rig,
) -> None:
    root = await admin(rig)
    await rig.user("kim")
    await create(root, owner="kim")
    await create(root, "kim", owner="kim")
    await root.accounts.DeleteUser(accounts_pb2.DeleteUserRequest(name="kim"))
    assert await names(root) == ["vision"]
    left = (await get(root)).project
    assert (list(left.members), left.settings.owner) == ([], "")
    await root.accounts.CreateUser(accounts_pb2.CreateUserRequest(name="kim", restore=True))
    assert list((await get(root)).project.members) == []


async def test_a_submission_names_a_project_of_ones_own(rig: Rig) -> None:
    root = await admin(rig)
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await create(root, members=("kim",))
    assert (await kim.submit()).project == "kim"
    assert (await kim.submit(project="kim")).project == "kim"
    assert (await kim.submit(project="vision")).project == "vision"
    for who in (eve, root):
        code, _, details = await refused(who.submit(project="vision"))
        assert code == "NOT_FOUND"
        assert details["try"]
    code, _, details = await refused(eve.submit(project="nothing"))
    assert (code, details["why"]) == ("NOT_FOUND", "yours: eve")
    assert (await refused(eve.submit(project="kim")))[0] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("quota", "asked", "nearest"),
    [
        ({"gpu_thousandths": 4000}, {"gpu_thousandths": 8000}, "nsml run -g 4 ..."),
        ({"gpu_thousandths": 500}, {"gpu_thousandths": 1000}, "nsml run -g 0.5 ..."),
        ({"cpu_thousandths": 1000}, {"gpu_thousandths": 1000}, "nsml run -c 1 ..."),
        ({"memory_bytes": 10**9}, {"gpu_thousandths": 1000}, "nsml run --memory 1G ..."),
    ],
)
async def test_more_than_the_quota_is_refused_with_the_nearest(
    rig: Rig, quota: dict[str, int], asked: dict[str, int], nearest: str
) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    for name, settings in (("all", {"quota": quota}), ("each", {"member_quota": quota})):
        await create(root, name, members=("kim",), **settings)
        call = kim.submit(project=name, resources=resources_pb2.Resources(**asked))
        code, _, details = await refused(call)
        assert (code, details["try"]) == ("FAILED_PRECONDITION", nearest)
        assert f"project {name} may hold" in details["why"]


async def test_a_gang_beyond_the_quota_is_refused_with_one_that_is_not(rig: Rig) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    await create(root, members=("kim",), quota=pb.Quota(gpu_thousandths=5000))
    _, _, details = await refused(kim.submit(project="vision", replica_count=3, resources=TWO))
    assert details["try"] == "nsml run --nodes 2 ..."
    three = resources_pb2.Resources(gpu_thousandths=3000)
    _, _, details = await refused(kim.submit(project="vision", replica_count=2, resources=three))
    assert details["try"] == "nsml run -g 2 ..."
    half = resources_pb2.Resources(gpu_thousandths=500)
    _, _, details = await refused(kim.submit(project="vision", replica_count=12, resources=half))
    assert details["try"] == "nsml run --nodes 10 ..."


async def test_a_class_above_the_projects_highest_is_refused(rig: Rig) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    await create(root, members=("kim",), most_priority=sessions_pb2.PRIORITY_LOW)
    code, _, details = await refused(kim.submit(project="vision"))
    assert (code, details["try"]) == ("FAILED_PRECONDITION", "nsml run --priority low ...")
    await kim.submit(project="vision", priority=sessions_pb2.PRIORITY_LOW)


async def test_a_quota_holds_back_what_the_cluster_has_room_for(rig: Rig) -> None:
    root = await admin(rig)
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await create(root, members=("kim", "lee"), quota=pb.Quota(gpu_thousandths=1000))
    agent = await (await rig.agent(gpus=4)).connect()
    first = await kim.submit(project="vision", resources=GPU)
    [order] = await agent.assignments(1)
    second = await lee.submit(project="vision", resources=GPU)
    await until(lambda: waits_for(lee, second.name, "holds 1 of its 1 GPU; kim holds"), "a reason")
    shown = await get(lee)
    assert (shown.project.usage.gpu_thousandths, shown.project.usage.sessions) == (1000, 1)
    assert [(one.user, one.gpu_thousandths) for one in shown.holders] == [("kim", 1000)]
    assert (list(shown.sessions), shown.hidden_sessions) == ([], 1)
    assert list((await get(kim)).sessions) == [first.name]
    no_queue = lee.submit(project="vision", resources=GPU, no_queue=True)
    assert "holds 1 of its 1 GPU" in (await refused(no_queue))[2]["why"]
    await agent.report(order.replica, "RUNNING")
    await update(root, quota=pb.Quota(gpu_thousandths=2000))
    await agent.assignments(2)


async def waits_for(who: Stubs, session: str, why: str) -> bool:
    return why in (await who.get(session)).waiting


async def test_an_exhausted_budget_starts_nothing_more_and_what_runs_goes_on(rig: Rig) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    budget = pb.Budget(gpu_seconds=0.2, period_days=1, anchor={"seconds": 86_400})
    await create(root, members=("kim",), budget=budget)
    agent = await (await rig.agent(gpus=4)).connect()
    first = await kim.submit(project="vision", resources=GPU)
    [order] = await agent.assignments(1)
    await agent.report(order.replica, "RUNNING")

    async def is_used_up() -> bool:
        return (await get(kim)).project.usage.gpu_seconds >= 0.2

    await until(is_used_up, "the budget is used up")
    second = await kim.submit(project="vision", resources=GPU)
    await until(lambda: waits_for(kim, second.name, " of 0.0001 GPU-hours"), "a reason")
    assert await kim.state(first.name) == "RUNNING"
    assert (await get(kim)).project.usage.until.ToSeconds() % 86_400 == 0
    await agent.report(order.replica, "FINALIZED", cause="COMPLETED")
    await kim.reaches(first.name, "SUCCEEDED")
    live = rig.plane.core.state

    async def is_exported() -> bool:
        return live.by_name(first.name) is None

    await until(is_exported, "the first one leaves the store")
    used = (await get(kim)).project.usage.gpu_seconds
    assert used >= 0.2
    charges = await rig.on.history.ledger.charges("vision", since=0.0)
    assert used == pytest.approx(sum(one.seconds for one in charges), abs=0.002)
    await update(root, budget=pb.Budget(gpu_seconds=3600.0))
    await agent.assignments(1)
    assert (await refused(delete(root)))[0] == "FAILED_PRECONDITION"


async def delete(who: Stubs) -> None:
    await who.projects.DeleteProject(pb.DeleteProjectRequest(name="vision"))


async def test_what_was_used_is_found_again_by_a_control_plane_that_starts(rig: Rig) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    await create(root, members=("kim",))
    agent = await (await rig.agent(gpus=1)).connect()
    agent.runs_at_once = True
    session = await kim.submit(project="vision", resources=GPU)
    await kim.reaches(session.name, "SUCCEEDED")

    async def is_exported() -> bool:
        return rig.plane.core.state.by_name(session.name) is None

    await until(is_exported, "it leaves the store")
    await update(root, budget=pb.Budget(gpu_seconds=3600.0, anchor={"seconds": 86_400}))

    async def is_known() -> bool:
        return (await get(kim)).project.usage.HasField("gpu_seconds")

    await until(is_known, "the ledger is read")
    [charge] = await rig.on.history.ledger.charges("vision", since=0.0)
    used = (await get(kim)).project.usage.gpu_seconds
    assert used == pytest.approx(charge.seconds, abs=0.002)


async def test_what_is_stored_for_a_project_is_its_members_business(rig: Rig) -> None:
    root = await admin(rig)
    kim, eve = await rig.user("kim"), await rig.user("eve")
    await create(root, members=("kim",), kept_bytes=1 << 30)
    await create(root, "speech")
    request = pb.GetProjectStorageRequest(name="vision")
    for who in (root, kim):
        found = (await who.projects.GetProjectStorage(request)).storage
        assert (found.project, found.usage.limit_bytes) == ("vision", 1 << 30)
    assert not found.is_uncounted
    own = pb.GetProjectStorageRequest(name="kim")
    assert (await kim.projects.GetProjectStorage(own)).storage.is_uncounted
    assert (await refused(eve.projects.GetProjectStorage(own)))[0] == "NOT_FOUND"
    assert (await refused(eve.projects.GetProjectStorage(request)))[0] == "NOT_FOUND"
    for who, names in ((root, {"vision", "speech"}), (kim, {"vision"}), (eve, set())):
        listed = await who.projects.ListProjectStorage(pb.ListProjectStorageRequest())
        assert {one.project for one in listed.storage} == names
    assert (await refused(update(kim, kept_bytes=0)))[0] == "PERMISSION_DENIED"
    assert (await refused(update(root, kept_bytes=1 << 63)))[0] == "INVALID_ARGUMENT"
    assert not (await update(root, kept_bytes=0)).settings.HasField("kept_bytes")


async def test_over_its_quota_a_project_takes_no_session(rig: Rig) -> None:
    root = await admin(rig)
    kim = await rig.user("kim")
    await create(root, members=("kim",), kept_bytes=1 << 20)
    rig.plane.core.project_kept.take("vision", 1 << 20)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await kim.submit(project="vision")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "for project vision" in (caught.value.details() or "")
    await kim.submit()
    await update(root, kept_bytes=0)
    await kim.submit(project="vision")
