"""Datasets and projects, on a platform over real gRPC."""

import pytest

from nsml.content.digests import digest_of
from nsml.content.manifest import Entry, build
from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.datasets_pb2 import Dataset
from nsml.v1.projects_pb2 import Project, ProjectSettings, Quota
from tests.unit.tui.conftest import said, shows, until
from tui.feed import MOST_FILES
from tui.model import ClusterReceived
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen

SIZE = (120, 40)


def add_dataset(server, name, *paths, owner="kim", **fields):
    tree = build([Entry(path=path, mode=0o644, size=0, chunks=()) for path in paths]).encode()
    digest = digest_of(tree)
    server.state.blobs[digest] = tree
    given = {"version": 2, "file_count": len(paths), **fields}
    server.state.datasets.append(Dataset(name=name, owner=owner, digest=digest, **given))


@pytest.fixture
def datasets(server):
    add_dataset(server, "mnist", "train/0.png", "labels.csv", message="with test split")
    add_dataset(server, "kin", "a.wav", owner="lee")
    uses = {"kim/mnist/1": ("mnist", "n1"), "lee/mnist/1": ("kim/mnist", "n2")}
    for name, (dataset, node) in uses.items():
        spec = pb.SessionSpec(datasets=[pb.DatasetReference(name=dataset)])
        server.state.add(name, spec=spec, replicas=[pb.Replica(node=node)])
    server.state.add("kim/None/1")
    return server


async def test_a_dataset_is_shown_with_its_files_and_opens_its_sessions(dashboard, datasets):
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("4", *"/split", "enter")
        await shows(pilot, "1 of 2 datasets", "filter: split", "kim/mnist", "labels.csv  0 Bytes")
        await shows(pilot, "used by     2 live sessions", "on nodes    n1, n2", "train/  1 file")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionsScreen))
        await shows(pilot, "2 of 3 sessions · filter: ds:kim/mnist", "lee/mnist/1")
        await pilot.press("escape")
        await shows(pilot, "3 of 3 sessions")


async def test_files_are_those_of_the_dataset_under_the_cursor(dashboard, datasets):
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await shows(pilot, "2 of 2 datasets", "lee/kin", "a.wav  0 Bytes")
        await pilot.press("j")
        await shows(pilot, "labels.csv")
        assert "a.wav" not in said(dashboard)
        await pilot.press("1", "4")
        await shows(pilot, "labels.csv")


async def test_files_that_cannot_be_read_or_are_too_many_are_said_to_be(dashboard, server):
    add_dataset(server, "large", "a", file_count=MOST_FILES + 1)
    add_dataset(server, "rotten", "b")
    server.state.blobs[server.state.datasets[1].digest] = b"what is no manifest"
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await shows(pilot, "2 of 2 datasets", "too large for its files to be listed here")
        await pilot.press("j")
        await until(pilot, lambda: "kim/rotten" in said(dashboard))
        await until(pilot, lambda: "too large" not in said(dashboard))
        await until(pilot, lambda: "loading..." not in said(dashboard))
        assert "● live" in said(dashboard)


async def test_what_is_said_of_a_dataset_is_shown_and_not_obeyed(dashboard, server):
    add_dataset(server, "mnist", "a.png", message="\x1b]0;owned\x07")
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await shows(pilot, "␛]0;owned␇", "a.png")
        assert "\x1b" not in said(dashboard)


async def test_a_project_says_what_it_holds_and_opens_its_sessions(dashboard, server):
    settings = ProjectSettings(
        owner="kim", quota=Quota(gpu_thousandths=16_000), member_quota=Quota(gpu_thousandths=4_000)
    )
    for name in ("vision", "speech"):
        project = Project(name=name, settings=settings, members=["kim", "lee"], member_count=2)
        server.state.projects[name] = project
    server.state.add("kim/mnist/1", project="vision")
    server.state.add("kim/mnist/2")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 2 sessions")
        await pilot.press("6")
        await shows(pilot, "2 of 2 projects", "members   kim, lee", "you hold")
        await pilot.press(*"/vis", "enter")
        await shows(pilot, "1 of 2 projects", "0 of 16", "each      at most 4 GPUs")
        await pilot.press("enter")
        await shows(pilot, "1 of 2 sessions · filter: project:vision", "kim/mnist/1")


async def test_lists_without_anything_say_what_makes_it(dashboard, server):
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await shows(pilot, "no datasets yet · nsml dataset push NAME PATH makes one")
        await pilot.press("6")
        await shows(pilot, "no projects: your sessions count for you alone")


async def test_what_happens_is_seen_as_it_does_and_opens_its_session(dashboard, server):
    first = server.state.add("kim/mnist/1", pb.SESSION_STATE_QUEUED)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        await pilot.press("5")
        await shows(pilot, "the last 1 event", "submitted")
        first = server.state.change(first, state=pb.SESSION_STATE_PREPARING)
        await shows(pilot, "placed", "the last 2 events")
        server.state.change(first, state=pb.SESSION_STATE_PAUSED)
        await shows(pilot, "paused")
        assert dashboard.screen.table.current.what == "paused"
        server.state.add("lee/kin/7", memo="\x1b[2Jcleared")
        await shows(pilot, "lee/kin/7", "␛[2Jcleared")
        await pilot.press(*"/kin", "enter", "enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await shows(pilot, "lee/kin/7")


async def test_another_leader_is_an_event(dashboard, server):
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        await shows(pilot, "● live")
        now = dashboard.clock.time()
        for leader, term in (("cp-1", 3), ("cp-2", 4), ("", 4)):
            cluster = nodes_pb2.GetClusterResponse(leader=leader, term=term)
            dashboard.model.fold(ClusterReceived(cluster, 0.0), now)
        told = [(one.what, one.subject, one.words) for one in dashboard.model.turns]
        assert told[-2:] == [
            ("leader", "cp-2", "leads term 4, before it cp-1"),
            ("no leader", "cp-2", "leads no more"),
        ]
