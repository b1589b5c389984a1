"""Orders about environments: what is there, and that nothing goes that a session uses."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.environment_builds import EnvironmentBuilds, OnMachine
from nodeagent.environment_orders import (
    MOST_LISTED,
    MOST_WAITING,
    WANTED_FOR_S,
    EnvironmentOrders,
)
from nodeagent.environments.virtualenvs import Environments, Facts
from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.replica.assignments import note_use
from nsml.common.clock import SystemClock, in_own_thread
from nsml.packages.requirements import HERE, Requirements
from nsml.v1 import agents_pb2 as pb
from tests.support.sandboxes import environments_in
from tests.support.wheels import make_wheel

SESSION = "s" + "a" * 16


def builds_of(environments: Environments) -> EnvironmentBuilds:
    return EnvironmentBuilds(
        OnMachine(environments),
        most=(2, 1),
        reader=lambda **_: HERE,
        clock=SystemClock(),
        run_long=in_own_thread,
    )


async def test_they_are_listed_with_their_users_and_go_when_nothing_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels", "small")
    for name, value in (("CONFIG_FILE", "/dev/null"), ("NO_INDEX", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    environments = environments_in(tmp_path)
    small = Requirements(lines=("small",))
    made = environments.provide(small, lambda _: None, owner="u.kim").folder
    bare = environments.provide(Requirements(), lambda _: None, owner="u.kim").folder
    (tmp_path / "environments" / f"{bare.name}.owner").unlink()  # as of an earlier version
    folders = ReplicaFolders(tmp_path / "replicas")
    folders.create()
    replica = folders.of(ReplicaId(session_id=SESSION, attempt=1, rank=0))
    replica.create()
    note_use(replica, f"environment {made.name}")
    answered = asyncio.Event()
    orders = EnvironmentOrders(
        {"environment": environments},
        folders,
        builds_of(environments),
        answered=answered.set,
        clock=SystemClock(),
        run_long=in_own_thread,
    )

    async def ask(remove: str = "", owner: str = "") -> pb.EnvironmentReport:
        answered.clear()
        orders.obey(pb.EnvironmentOrder(order_id="o", remove=remove, owner_id=owner))
        await answered.wait()
        [report] = orders.take_answers()
        assert report.order_id == "o"
        return report

    async with orders:
        by_key = {one.key: one for one in (await ask()).environments}
        found = by_key[made.name]
        assert (found.owner_id, found.for_all, found.package_count) == ("u.kim", False, 1)
        assert list(found.sessions) == [SESSION]
        assert 0 < found.shared_bytes < found.bytes
        assert found.built_at.seconds <= found.used_at.seconds
        old = by_key[bare.name]
        assert (old.owner_id, old.for_all, old.package_count) == ("", False, 0)
        assert [one.key for one in (await ask(owner="u.kim")).environments] == [made.name]
        assert not (await ask(owner="u.lee")).environments
        assert (await ask(made.name, owner="u.lee")) == pb.EnvironmentReport(order_id="o")
        kept = await ask(made.name, owner="u.kim")
        assert [one.key for one in kept.environments] == [made.name]
        assert not kept.removed
        assert "a session uses it" in kept.words
        assert made.is_dir()
        assert (await ask("../replicas")) == pb.EnvironmentReport(order_id="o")
        replica.remove()
        assert (await ask(made.name)).removed
        assert [one.key for one in (await ask()).environments] == [bare.name]
    assert [path.name for path in (tmp_path / "environments").glob(f"{made.name}*")] == []


class OneImage:
    """An image with packages, which everybody may use."""

    removed = False

    def stored(self) -> dict[str, float]:
        return {} if self.removed else {"i" * 32: 5.0}

    def owner(self, _key: str) -> str:
        return ""

    def facts(self, key: str) -> Facts:
        return Facts(owner=self.owner(key), package_count=2, size=9, shared=4, built_at=1.0)

    def remove(self, _key: str, is_used: Callable[[], bool]) -> bool:
        self.removed = not is_used()
        return self.removed


async def test_images_with_packages_are_environments_whose_users_have_an_image(
    tmp_path: Path,
) -> None:
    folders = ReplicaFolders(tmp_path / "replicas")
    folders.create()
    replica = folders.of(ReplicaId(session_id=SESSION, attempt=1, rank=0))
    replica.create()
    note_use(replica, f"image {'i' * 32}")
    environments = environments_in(tmp_path)
    bare = environments.provide(Requirements(), lambda _: None, owner="u.kim").folder.name
    answered = asyncio.Event()
    orders = EnvironmentOrders(
        {"environment": environments, "image": OneImage()},
        folders,
        builds_of(environments),
        answered=answered.set,
        clock=SystemClock(),
        run_long=in_own_thread,
    )

    async def ask(remove: str = "", owner: str = "") -> pb.EnvironmentReport:
        answered.clear()
        orders.obey(pb.EnvironmentOrder(order_id="o", remove=remove, owner_id=owner))
        await answered.wait()
        [report] = orders.take_answers()
        return report

    async with orders:
        listed = (await ask(owner="u.lee")).environments
        assert [one.key for one in listed] == [bare, "i" * 32]
        image = listed[1]
        assert (image.for_all, image.bytes, image.shared_bytes) == (True, 9, 4)
        assert list(image.sessions) == [SESSION]
        assert "for everybody" in (await ask("i" * 32, owner="u.lee")).words
        assert "a session uses it" in (await ask("i" * 32)).words
        replica.remove()
        assert (await ask("i" * 32)).removed
        assert [one.key for one in (await ask()).environments] == [bare]


class StoppedClock(SystemClock):
    """Goes on as a test says."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class ManyEnvironments:
    """Environments of two users, which take no disk; counts those that are looked at."""

    def __init__(self) -> None:
        self.owners = {f"{number:03}": "u.lee" if number else "u.kim" for number in range(400)}
        self.looked_at: list[str] = []
        self.began = threading.Event()
        self.goes_on = threading.Event()

    def stored(self) -> dict[str, float]:
        self.began.set()
        assert self.goes_on.wait(60)
        return {key: float(key) for key in self.owners}

    def owner(self, key: str) -> str:
        return self.owners[key]

    def facts(self, key: str) -> Facts:
        self.looked_at.append(key)
        return Facts(owner=self.owners[key], package_count=1, size=1, shared=0, built_at=0.0)


async def test_users_of_busy_nodes_see_theirs_and_equal_orders_are_carried_out_once(
    tmp_path: Path,
) -> None:
    folders = ReplicaFolders(tmp_path / "replicas")
    folders.create()
    many = ManyEnvironments()
    clock = StoppedClock()
    answered = asyncio.Event()
    orders = EnvironmentOrders(
        {"environment": many},  # type: ignore[dict-item]
        folders,
        builds_of(environments_in(tmp_path)),
        answered=answered.set,
        clock=clock,
        run_long=in_own_thread,
    )

    async def answers(count: int) -> dict[str, pb.EnvironmentReport]:
        found: dict[str, pb.EnvironmentReport] = {}
        while len(found) < count:
            await answered.wait()
            answered.clear()
            found |= {one.order_id: one for one in orders.take_answers()}
        return found

    async with orders:
        orders.obey(pb.EnvironmentOrder(order_id="a", owner_id="u.kim"))
        await asyncio.to_thread(many.began.wait)
        orders.obey(pb.EnvironmentOrder(order_id="late", owner_id="u.lee"))
        clock.now += WANTED_FOR_S
        orders.obey(pb.EnvironmentOrder(order_id="b", owner_id="u.kim"))
        orders.obey(pb.EnvironmentOrder(order_id="all"))
        for number in range(MOST_WAITING - 3):
            orders.obey(pb.EnvironmentOrder(order_id=f"x{number}", remove=f"x{number}"))
        orders.obey(pb.EnvironmentOrder(order_id="y", remove="y"))
        assert [one.words for one in orders.take_answers()] == ["too many orders wait there"]
        many.goes_on.set()
        found = await answers(MOST_WAITING)
    kim = [[one.key for one in found[order].environments] for order in "ab"]
    assert kim == [["000"], ["000"]]
    assert len(found["all"].environments) == MOST_LISTED
    assert "late" not in found
    assert len(many.looked_at) == 1 + MOST_LISTED


def test_what_is_measured_once_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = environments_in(tmp_path)
    made = environments.provide(Requirements(), lambda _: None, owner="").folder
    first = environments.facts(made.name)
    monkeypatch.setattr(os, "walk", lambda _: pytest.fail("it was measured again"))
    assert environments.facts(made.name) == first
    assert environments.remove(made.name, lambda: False)
    monkeypatch.undo()
    assert environments.facts(made.name).size == 0
