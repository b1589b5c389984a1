"""tensorboard, visdom and dashboard: an address on stdout, a list, and an end."""

import pytest

from nsml.v1 import views_pb2

TENSORBOARD = views_pb2.VIEW_KIND_TENSORBOARD


@pytest.fixture(autouse=True)
def sessions(state):
    for number in (1, 2):
        state.add(f"kim/mnist/{number}")


def test_an_address_is_printed_and_nothing_else(nsml, state):
    result = nsml("tensorboard", "kim/mnist/1", "kim/mnist/2")
    assert result.stdout == "http://127.0.0.1:1/view/v0/?ticket=t\n"
    assert list(state.views["v0"].sessions) == ["kim/mnist/1", "kim/mnist/2"]


def test_views_are_listed_and_ones_own_are_stopped(nsml, state):
    assert "no views" in nsml("tensorboard").stderr
    nsml("tensorboard", "kim/mnist/1")
    nsml("tensorboard", "kim/mnist/2")
    state.views["x"] = views_pb2.View(
        id="x", owner="lee", sessions=["kim/mnist/2"], kind=TENSORBOARD
    )
    assert nsml("tensorboard", "-o", "name").stdout.split() == ["v0", "v1", "x"]
    stopped = nsml("tensorboard", "--stop", "kim/mnist/2")
    assert stopped.stdout == "view v1 of kim/mnist/2 has ended\n"
    again = nsml("tensorboard", "--stop", "kim/mnist/2", check=False)
    assert (again.code, "you have no view of that" in again.stderr) == (5, True)
    nsml("tensorboard", "--stop")
    assert list(state.views) == ["x"]
    assert "you have no views" in nsml("tensorboard", "--stop").stderr


def test_each_kind_lists_and_stops_its_own(nsml, state):
    assert nsml("visdom", "kim/mnist/1").stdout == "http://127.0.0.1:1/view/v0/?ticket=t\n"
    nsml("tensorboard", "kim/mnist/1")
    assert state.views["v0"].kind == views_pb2.VIEW_KIND_VISDOM
    assert nsml("visdom", "-o", "name").stdout.split() == ["v0"]
    assert nsml("tensorboard", "-o", "name").stdout.split() == ["v1"]
    assert nsml("visdom", "--stop", "kim/mnist/1").stdout == "view v0 of kim/mnist/1 has ended\n"
    again = nsml("visdom", "--stop", "kim/mnist/1", check=False)
    assert (again.code, "nsml visdom" in again.stderr) == (5, True)
    assert list(state.views) == ["v1"]


@pytest.mark.parametrize("command", ["tensorboard", "visdom"])
def test_who_has_points_shown_that_were_let_go_is_told(nsml, state, command):
    state.let_go.FromJsonString("2026-03-04T05:06:07Z")
    opened = nsml(command, "kim/mnist/1")
    assert opened.stdout == "http://127.0.0.1:1/view/v0/?ticket=t\n"
    assert "points of kim/mnist/1 were removed on 2026-03-04" in opened.stderr


def test_a_dashboard_takes_no_sessions_and_is_stopped_alone(nsml, state):
    assert nsml("dashboard").stdout == "http://127.0.0.1:1/view/v0/?ticket=t\n"
    assert state.views["v0"].kind == views_pb2.VIEW_KIND_DASHBOARD
    nsml("tensorboard", "kim/mnist/1")
    assert nsml("dashboard", "kim/mnist/1", check=False).code == 2
    assert nsml("tensorboard", "-o", "name").stdout.split() == ["v1"]
    assert nsml("dashboard", "--stop").stdout == "view v0 has ended\n"
    assert list(state.views) == ["v1"]
    assert "you have no views" in nsml("dashboard", "--stop").stderr
