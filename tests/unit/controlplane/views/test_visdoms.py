"""Visdom: what must be there, what a browser may ask for, and what is drawn. The real one: tests/e2e/test_visdom.py."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.views import viewers, visdom_launcher, visdoms
from controlplane.views.views import Kind
from nsml.v1 import sessions_pb2 as pb

SOUND = {"python": "3.12.1", "visdom": "0.3.0", "tornado": "6.5.10", "missing": []}


@pytest.mark.parametrize(
    ("found", "words", "advice"),
    [
        ("No such file or directory", "/v/python cannot be run", "visdom_python in its settings"),
        ({"visdom": ""}, "visdom is not installed", "/v/python -m pip install 'visdom==0.3.0'"),
        ({"visdom": "0.2.4"}, "visdom 0.2.4 is installed", "visdom==0.3.0"),
        ({"tornado": "6.6.1"}, "tornado 6.6.1 is installed", "'tornado<6.6'"),
        ({"tornado": "10.0"}, "tornado 10.0 is installed", "'tornado<6.6'"),
        (
            {"missing": ["js/a.js"]},
            "scripts of visdom's page are missing",
            "python -m visdom.server",
        ),
    ],
)
def test_what_is_missing_is_told_with_what_to_run(found: Any, words: str, advice: str) -> None:
    given = found if isinstance(found, str) else {**SOUND, **found}
    problem = viewers.what_is_wrong("/v/python", given)
    assert problem is not None
    assert words in problem.message
    assert advice in problem.attempt
    assert viewers.what_is_wrong("/v/python", SOUND) is None


async def test_an_interpreter_is_asked_itself(tmp_path: Path) -> None:
    found = await viewers._found_by(sys.executable)
    assert isinstance(found, dict)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["visdom"] == ""
    assert await viewers._found_by(str(tmp_path / "none")) == "No such file or directory"
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    assert await viewers._found_by(str(other)) == "it is no Python 3.12 or newer"
    other.write_text("#!/bin/sh\necho '[]'\n")
    assert await viewers._found_by(str(other)) == "it is no Python 3.12 or newer"


def test_the_scripts_that_the_page_names_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "visdom-0.3.0.dist-info").mkdir()
    (tmp_path / "visdom-0.3.0.dist-info/METADATA").write_text("Name: visdom\nVersion: 0.3.0\n")
    static = tmp_path / "visdom/static"
    static.mkdir(parents=True)
    (tmp_path / "visdom/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert visdom_launcher.found()["missing"] == ["index.html"]
    (static / "index.html").write_text(
        """<script src={{ static_url("a.js") }}><script src={{static_url('b/c.js')}}>
        <link href={{ static_url("d.css") }}><link href={{ static_url("../user/style.css") }}>"""
    )
    (static / "a.js").write_text("1")
    (static / "d.css").touch()  # a download that broke off
    found = visdom_launcher.found()
    assert (found["visdom"], found["missing"]) == ("0.3.0", ["b/c.js", "d.css"])


@pytest.mark.parametrize(
    ("method", "path", "may"),
    [
        ("GET", "/", True),
        ("HEAD", "/", True),
        ("GET", "/env/kim_mnist_3", True),
        ("GET", "/compare/kim_mnist_3+kim_mnist_4", True),
        ("GET", "/static/js/mathjax/3.2.2/es5/tex-mml-svg.js", True),
        ("GET", "/user/style.css", True),
        ("GET", "/socket_wrap", True),
        ("POST", "/socket_wrap", True),
        ("POST", "/env/kim_mnist_3", True),
        ("POST", "/compare/kim_mnist_3+kim_mnist_4", True),
        *[
            ("POST", f"/{name}", False)
            for name in (
                *("", "events", "update", "close", "save", "upload_env", "delete_env", "fork_env"),
                *("experiments/log", "win_data", "win_exists", "env_state", "vis_socket_wrap"),
                *(
                    "socket",
                    "env/",
                    "env/a/b",
                    "static/x",
                    "socket_wrap/",
                    "/close",
                    "env/../close",
                ),
            )
        ],
        ("GET", "/vis_socket", False),
        ("GET", "/socket", False),
        ("GET", "/error/500", False),
        ("GET", "/health", False),
        ("GET", "", False),
        ("GET", "/view/vother/", False),
        ("PUT", "/close", False),
    ],
)
def test_a_browser_may_ask_for_what_the_page_needs_alone(method: str, path: str, may: bool) -> None:
    def child(kind: Kind) -> viewers._Child:
        return viewers._Child(None, Path("/nowhere"), kind)  # type: ignore[arg-type]

    assert child(Kind.VISDOM).allows(method, path) is may
    assert child(Kind.TENSORBOARD).allows(method, path)


def point(name: str, number: float, step: float, rank: int = 0) -> pb.MetricPoint:
    return pb.MetricPoint(name=name, number=number, step=step, rank=rank, attempt=1)


def board(*sessions: str) -> visdoms.Visdom:
    return visdoms.Visdom({"folder": Path("/nowhere"), "prefix": "/view/v", "sessions": sessions})


def test_each_session_is_an_environment_and_all_of_them_are_one() -> None:
    first, second = (pb.Session(id=f"s{n}", name=f"kim/mnist/{n}") for n in (1, 2))
    one = board("s1", "s2")
    one.add(first, [point("loss", 0.5, 1), point("loss", 0.25, 2), point("acc", math.nan, 1)])
    one.add(second, [point("loss", 3, 1), point("loss", 4, 1, rank=1)])
    drawn = list(one._windows())
    assert [(window["eid"], window["opts"]["title"]) for window in drawn] == [
        ("kim_mnist_1", "loss"),
        ("kim_mnist_1", "acc"),
        ("kim_mnist_2", "loss"),
        ("main", "loss"),
        ("main", "acc"),
    ]
    loss = drawn[0]["data"]
    assert [(line["name"], line["x"], line["y"]) for line in loss] == [
        ("kim/mnist/1", [1, 2], [0.5, 0.25])
    ]
    assert drawn[1]["data"][0]["y"] == [None]
    assert [line["name"] for line in drawn[3]["data"]] == [
        *("kim/mnist/1", "kim/mnist/2 rank 0", "kim/mnist/2 rank 1")
    ]
    # One metric is one window in each environment, whatever its name is.
    assert drawn[0]["win"] == drawn[2]["win"] == drawn[3]["win"] != drawn[1]["win"]
    json.dumps(drawn, allow_nan=False)
    assert list(one._windows()) == []
    one.add(second, [point("loss", 5, 2)])
    assert {window["eid"] for window in one._windows()} == {"kim_mnist_2", "main"}


def test_names_are_shown_as_they_are_and_never_as_markup() -> None:
    one = board("s1")
    session = pb.Session(id="s1", name="kim/mnist/1")
    one.add(session, [point("<img src=x>\x1b@vector:<a href='//x'>", 1, 1)])
    for window in one._windows():
        for line in window["data"]:
            assert "<" not in line["name"]
        assert "\x1b" not in window["opts"]["title"]


def test_environments_of_two_names_stay_two() -> None:
    one = pb.Session(id="s1", name="kim/a_b/3")
    assert visdoms.environment(one) == "kim_a_b_3"
    assert visdoms.environment(one, taken=["kim_a_b_3"]) == "kim_a_b_3_s1"


def test_lines_and_points_are_bounded_and_what_is_left_out_is_told() -> None:
    ids = [f"s{n}" for n in range(20)]
    one = board(*ids)
    session = pb.Session(id="s1", name="kim/mnist/1")
    most = visdoms.MOST_SERIES // 20
    one.add(session, [point(f"m{n:03}", n, 1) for n in range(most + 5)])
    one.add(session, [point("m000", n, n) for n in range(5 * visdoms.MOST_POINTS)])
    drawn = [window for window in one._windows() if window["eid"] == "kim_mnist_1"]
    assert "kim/mnist/1" in drawn[0]["data"][0]["content"]
    assert len(drawn) == 1 + most
    (line,) = drawn[1]["data"]
    assert len(line["x"]) <= visdoms.MOST_POINTS
    # Thinned, it still reaches as far, and begins where it began.
    assert (min(line["y"]), max(line["y"])) == (0, 5 * visdoms.MOST_POINTS - 1)
