"""Orders about environments: what is there, and that nothing goes that a session uses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.environment_orders import EnvironmentOrders
from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.replica.assignments import note_use
from nsml.common.clock import in_own_thread
from nsml.packages.requirements import Requirements
from nsml.v1 import agents_pb2 as pb
from tests.support.sandboxes import environments_in
from tests.support.wheels import make_wheel

SESSION = "s" + "a" * 16


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
    orders = EnvironmentOrders(environments, folders, answered=answered.set, run_long=in_own_thread)

    async def ask(remove: str = "") -> pb.EnvironmentReport:
        answered.clear()
        orders.obey(pb.EnvironmentOrder(order_id="o", remove=remove))
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
        kept = await ask(made.name)
        assert not kept.removed
        assert "a session uses it" in kept.words
        assert made.is_dir()
        assert "not there" in (await ask("../replicas")).words
        replica.remove()
        assert (await ask(made.name)).removed
        assert [one.key for one in (await ask()).environments] == [bare.name]
    assert [path.name for path in (tmp_path / "environments").glob(f"{made.name}*")] == []
