"""Who users are on a machine: ids that are never given twice."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.machine.accounts import Accounts, AccountsError, IdRange, barrier, build_ids
from nodeagent.replica.runner import Runner
from nsml.common.clock import inline
from nsml.v1 import agents_pb2 as pb
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.replica.runner import RunnerContext

IDS = IdRange(1_900_000_000, 5)


def accounts(folder: Path, ids: IdRange = IDS, *, by_group: bool = False) -> Accounts:
    return Accounts(folder, ids, by_group=by_group)


def test_each_user_has_one_id_for_good(tmp_path: Path) -> None:
    made = accounts(tmp_path)
    kim, lee = made.of_user("kim"), made.of_user("lee")
    assert kim != lee
    assert made.of_user("kim") == kim
    later = accounts(tmp_path)
    assert (later.of_user("lee"), later.of_user("kim")) == (lee, kim)
    assert (tmp_path / "accounts.json").stat().st_mode & 0o777 == 0o600


def test_what_is_one_users_is_read_by_that_user_alone(tmp_path: Path) -> None:
    """Where programs see the machine's files; in roots of their own they see what is mounted there."""
    if os.geteuid():
        pytest.skip("only root gives files to groups")
    tree = tmp_path / "tree"
    tree.mkdir(mode=0o755)
    accounts(tmp_path).keep_private(tree, "u.kim")
    assert tree.stat().st_mode & 0o777 == 0o755
    made = accounts(tmp_path, by_group=True)
    for _ in range(2):
        made.keep_private(tree, "u.kim")
        facts = tree.stat()
        assert (facts.st_mode & 0o777, facts.st_uid) == (0o750, os.geteuid())
        assert facts.st_gid == made.of_user("u.kim") != made.of_user("u.lee")


async def test_another_user_of_a_name_has_another_id(tmp_path: Path) -> None:
    """What the one before left on the node, files and processes, is none of theirs."""
    made = accounts(tmp_path)
    before = made.of_user("kim")  # by an agent of the version before, or for a user from then
    place = SimpleNamespace(accounts=made, run=inline, folder=ReplicaFolders(tmp_path).of)

    async def uid(**owner: str) -> int | None:
        runner = Runner(
            place=cast("RunnerContext", place),
            replica_id=ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0),
            assignment=pb.Assignment(owner="kim", **owner),
        )
        return await runner._uid()

    assert await uid() == before
    assert await uid(owner_id="kim") == before
    others = [await uid(owner_id=one) for one in ("u.first", "u.second", "u.first")]
    assert others[0] == others[2]
    assert len({before, *others}) == 3
    assert [made.known(one) for one in ("kim", "u.first", "u.third")] == [before, others[0], None]


@settings(max_examples=examples(50), deadline=None)
@given(owners=st.lists(st.text(min_size=1, max_size=3), max_size=8), again=st.booleans())
def test_no_id_is_given_twice_and_none_outside_the_range(
    tmp_path_factory: pytest.TempPathFactory, owners: list[str], again: bool
) -> None:
    folder = tmp_path_factory.mktemp("accounts")
    made, given_ids = accounts(folder), {}
    for owner in owners:
        if again:
            made = accounts(folder)
        try:
            given_ids.setdefault(owner, set()).add(made.of_user(owner))
        except AccountsError:
            del given_ids[owner]
            assert len(given_ids) == len(list(IDS.given()))
    numbers = [number for numbers in given_ids.values() for number in numbers]
    assert len(numbers) == len(set(numbers)) == len(given_ids)
    assert set(numbers) <= set(IDS.given())
    assert IDS.trial not in numbers


def test_a_full_range_is_refused_with_what_to_do(tmp_path: Path) -> None:
    made = accounts(tmp_path)
    for number in range(4):
        made.of_user(f"user{number}")
    with pytest.raises(AccountsError, match=r"user/late.*uid_count"):
        made.of_user("late")
    assert made.of_user("user2") == 1_900_000_002
    wider = accounts(tmp_path, IdRange(1_900_000_000, 6))
    assert wider.of_user("late") == 1_900_000_004


@pytest.mark.parametrize("content", ["", "[]", "{", '{"user/kim": "0"}'])
def test_a_damaged_file_gives_nobody_an_id(tmp_path: Path, content: str) -> None:
    (tmp_path / "accounts.json").write_text(content)
    with pytest.raises(AccountsError, match=r"accounts\.json cannot be read"):
        accounts(tmp_path)


def test_ids_of_the_machine_are_left_alone() -> None:
    ids = IdRange(1000, 10)
    assert (
        ids.overlap("root:x:0:0::/:/bin/sh\nkim:x:1003:1003::/:/bin/sh", {})
        == "1003 is the uid of kim"
    )
    assert not ids.overlap("root:x:0:0::/:/bin/sh\nkim:x:1010:1003::/:/bin/sh\n+::::::\nbad", {})
    assert ids.overlap("", {"/etc/subuid": "# no\nkim:990:11"}) == (
        "/etc/subuid gives 990 to 1000 to kim"
    )
    assert not ids.overlap("", {"/etc/subuid": "kim:100000:65536\nlee:990:10"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to groups")
def test_a_tree_is_its_groups_alone_and_everybodys_again(tmp_path: Path) -> None:
    tree, other = tmp_path / "digest", tmp_path / "other"
    for one in (tree, other):
        one.mkdir()
    made = accounts(tmp_path, by_group=True)
    group = made.admit(tree)
    assert group == made.admit(tree) != made.admit(other)
    assert group not in {made.of_user("kim"), made.of_user("lee")}
    assert (tree.stat().st_gid, tree.stat().st_mode & 0o777) == (group, 0o550)
    assert accounts(tmp_path).admit(tree) is None
    assert tree.stat().st_mode & 0o777 == 0o555
    assert json.loads((tmp_path / "accounts.json").read_text())["tree/digest"] == group


def test_a_barrier_is_the_first_folder_that_others_cannot_pass(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    inner = tmp_path / "inner"
    inner.mkdir()
    assert str(inner).startswith(barrier(inner))
    assert barrier(inner)
    assert not barrier(tmp_path.__class__("/usr"))


def test_builds_have_ids_that_no_user_gets_or_has(tmp_path: Path) -> None:
    ids = IdRange(1_900_000_000, 64)
    assert set(ids.given()).isdisjoint(ids.builds)
    assert ids.trial not in ids.builds
    assert len(ids.builds) == 8
    # users of a node whose earlier agent knew no builds
    old = accounts(tmp_path, IdRange(ids.builds.start + 1, 4))
    had = {old.of_user(name) for name in ("kim", "lee")}
    assert had < set(ids.builds)
    assert build_ids(tmp_path, ids) == [one for one in ids.builds if one not in had]
    assert build_ids(tmp_path, IDS) == [IDS.trial]  # too few to part


def test_groups_of_trees_that_are_gone_go_to_other_trees_and_to_no_user(tmp_path: Path) -> None:
    """A range of ids is as long as there are users and trees at one time, not as many as ever came."""
    if os.geteuid():
        pytest.skip("only root gives files to groups")
    made = accounts(tmp_path, by_group=True)
    kim = made.of_user("kim")
    seen = set()
    for number in range(20):
        tree = tmp_path / f"tree{number}"
        tree.mkdir()
        group = made.admit(tree)
        assert group is not None
        assert group == made.admit(tree) == tree.stat().st_gid
        seen.add(group)
        made.release(tree.name, "never here")
    assert len(seen) == 1
    assert not made.trees()
    assert kim not in seen
    later = accounts(tmp_path, by_group=True)
    assert later.of_user("lee") not in seen | {kim}
    other, another = tmp_path / "other", tmp_path / "another"
    for one in (other, another):
        one.mkdir()
    assert later.admit(other) in seen
    assert later.admit(another) not in seen
    assert later.trees() == {"other", "another"}
