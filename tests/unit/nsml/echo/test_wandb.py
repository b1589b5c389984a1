"""Programs that report to W&B, unmodified, with the real client: newest and oldest supported version."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from nsml._echo._http import Request
from nsml._echo._receiver import Receiver
from nsml._echo._wandb_account import _Answers
from tests.support.echoes import Echoed, run_echoed
from tests.support.torch_environment import REPORTERS, oldest_wandb, require_torch

pytestmark = pytest.mark.long("the client loads for seconds, and starts a service of its own")

VERSIONS: Final = ("newest", "oldest")


def paths(version: str, folder: Path) -> list[Path]:
    """The entries of PYTHONPATH for a version."""
    require_torch()
    return [REPORTERS] if version == "newest" else oldest_wandb(folder)


def run_wandb(folder: Path, program: str, version: str = "newest", **more: str) -> Echoed:
    return run_echoed(folder, program, *paths(version, folder), python=require_torch(), **more)


def own_lines(done: Echoed) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("nsml: ")]


TUTORIAL = """
import os, wave
import numpy as np
import wandb

assert wandb.login()
config = {"lr": 0.02, "layers": [3, 4], "optimizer": {"name": "sgd"}}
run = wandb.init(project="digits", mode="online", config=config, tags=["a"], notes="text")
run.define_metric("epoch")
run.define_metric("val/*", step_metric="epoch")
for i in range(5):
    run.log({"train/loss": 1 / (i + 1), "deep": {"a": {"b": i}, "text": "x"}, "none": None})
wandb.log({"a": np.float32(1.5), "b": np.int64(3), "c": True}, commit=False)
wandb.log({"list": [1, 2.5]})
for epoch in range(2):
    run.log({"val/acc": 0.5 + epoch / 4, "epoch": epoch, "_timestamp": 1_700_000_000.5})
run.log({"given": 1.0}, step=40)
run.log({"given": 2.0}, step=50, commit=True)
run.log({"counted": 3})

picture = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
with wave.open("sound.wav", "wb") as sound:
    sound.setnchannels(1), sound.setsampwidth(2), sound.setframerate(8000)
    sound.writeframes(bytes(range(200)) * 8)
run.log({
    "image": wandb.Image(picture, caption="one"),
    "deeper": {"images": [wandb.Image(picture, caption="first"), wandb.Image(255 - picture)]},
    "histogram": wandb.Histogram(np_histogram=([1, 2, 3], [0, 1, 2, 4])),
    "table": wandb.Table(columns=["n", "text"], data=[[1, "x"], [2, None]]),
    "sound": wandb.Audio("sound.wav", caption="noise"),
    "html": wandb.Html("<b>bold</b>", inject=False),
    "points": wandb.Object3D(np.zeros((4, 3))),
})

run.config.update({"batch": np.int64(64)})
run.config["seed"] = 7
run.config.device = "cpu"
run.config.update({"lr": 0.01}, allow_val_change=True)
run.summary["best/acc"] = 0.875
run.summary["best/acc"] = 0.875
run.summary["counted"] = 3
run.summary["train/loss"] = 0.125
run.summary.update({"total": {"steps": 51}})
run.alert("title", "two\\nlines")
artifact = wandb.Artifact("model", "weights")
artifact.add_file("sound.wav")
assert run.log_artifact(artifact).wait().name.startswith("model:")
run.save("sound.wav")
run.finish()

second = wandb.init(project="digits", name="second", config={"lr": 3}, reinit=True)
second.log({"train/loss": 9.0})
second.finish()
resumed = wandb.init(id="again", resume="must")
resumed.log({"train/loss": 8.0})
resumed.finish()
print("ended well", run.name == run.id)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tutorial_is_recorded_without_an_account(tmp_path: Path, version: str) -> None:
    done = run_wandb(tmp_path, TUTORIAL, version)
    assert done.returncode == 0, done.stderr
    assert "ended well True" in done.stdout
    assert done.points() == [
        *(
            point
            for i in range(5)
            for point in (("train/loss", i, 1 / (i + 1)), ("deep.a.b", i, i))
        ),
        *(("a", 5, 1.5), ("b", 5, 3), ("c", 5, 1), ("list", 5, [1, 2.5])),
        *(("val/acc", 0, 0.5), ("epoch", 6, 0), ("val/acc", 1, 0.75), ("epoch", 7, 1)),
        *(("given", 40, 1.0), ("given", 50, 2.0), ("counted", 51, 3)),
        *(("best/acc", 52, 0.875), ("summary/train/loss", 52, 0.125), ("total.steps", 52, 51)),
        *(("second/train/loss", 0, 9.0), ("again/train/loss", 0, 8.0)),
    ]
    metrics = done.records("metric")
    assert {one["origin"] for one in metrics} == {"wandb"}
    shown = {name for one in metrics if one["summary"] for name in one["values"]}
    of_curves = {"train/loss", "val/acc", "second/train/loss", "again/train/loss"}
    assert shown == {*of_curves, "best/acc", "summary/train/loss", "total.steps"}
    assert [one["time"] for one in metrics if "val/acc" in one["values"]] == [1_700_000_000.5] * 2
    config = [one for one in done.records("config") if not one["run"]]
    assert [one["values"] for one in config] == [
        {"lr": 0.02, "layers": [3, 4], "optimizer": {"name": "sgd"}},
        *({"batch": 64}, {"seed": 7}, {"device": "cpu"}, {"lr": 0.01}),
    ]
    assert [one["run"] for one in done.records("config") if one["run"]] == ["second"]
    media = {one["name"]: one for one in done.records("media")}
    assert {name: (one["type"], one["step"], one["caption"]) for name, one in media.items()} == {
        "image": ("image", 52, "one"),
        "deeper.images/0": ("image", 52, "first"),
        "deeper.images/1": ("image", 52, ""),
        "histogram": ("histogram", 52, ""),
        "table": ("table", 52, ""),
        "sound": ("audio", 52, "noise"),
        "html": ("text", 52, ""),
    }

    def content(name: str) -> bytes:
        return Path(done.run_dir, "media", media[name]["file"]).read_bytes()

    for name, place in (("image", "image"), ("deeper.images/0", "images"), ("sound", "sound")):
        found = [one.read_bytes() for one in tmp_path.glob(f"wandb/run-*/files/media/*/{place}*")]
        assert content(name) in found, name
    assert json.loads(content("histogram")) == {"edges": [0, 1, 2, 4], "counts": [1, 2, 3]}
    assert json.loads(content("table")) == {
        "columns": ["n", "text"],
        "data": [[1, "x"], [2, None]],
    }
    assert b"<b>bold</b>" in content("html")
    lines = own_lines(done)
    assert "nsml: W&B alert: title: two lines" in lines
    for topic in ("artifacts", "run.save", "object3D"):
        assert len([line for line in lines if topic in line]) == 1, lines
    assert len(lines) == 4, lines


SHORT = """
import os
import wandb
run = wandb.init(project="digits", config={"lr": 0.5}, mode=os.environ.get("GIVEN_MODE"))
for i in range(3):
    run.log({"loss": 1.0 - i / 4, "nested": {"a": i}})
run.log({"h": wandb.Histogram([1, 2, 3])})
run.summary["best"] = 0.25
run.finish()
print("ended well", os.environ.get("WANDB_BASE_URL"))
"""
SHORT_POINTS = [point for i in range(3) for point in (("loss", i, 1.0 - i / 4), ("nested.a", i, i))]


@pytest.mark.parametrize("version", ["newest", pytest.param("oldest", marks=pytest.mark.variant)])
def test_without_echo_it_fails_as_ever(tmp_path: Path, version: str) -> None:
    done = run_wandb(tmp_path, SHORT, version, NSML_ECHO="none")
    assert done.returncode == 1
    assert "UsageError" in done.stderr
    assert done.records("metric") == []


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"WANDB_MODE": "offline"}, marks=pytest.mark.variant),
        {"GIVEN_MODE": "offline"},
    ],
    ids=str,
)
def test_offline_runs_are_recorded(tmp_path: Path, more: dict[str, str]) -> None:
    done = run_wandb(tmp_path, SHORT, **more)
    assert done.returncode == 0, done.stderr
    assert done.points() == [*SHORT_POINTS, ("best", 3, 0.25)]
    assert done.config() == {"lr": 0.5}
    assert [one["name"] for one in done.records("media")] == ["h"]
    assert list(tmp_path.glob("wandb/offline-run-*"))
    if "WANDB_MODE" in more:
        assert "ended well None" in done.stdout


def test_disabled_runs_are_not(tmp_path: Path) -> None:
    done = run_wandb(tmp_path, SHORT, WANDB_MODE="disabled")
    assert done.returncode == 0, done.stderr
    assert [done.points(), done.config(), done.records("media")] == [[], {}, []]
    assert own_lines(done) == []


class Server:
    """A W&B server of the user: it records what it is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: list[str] = []
        self.receiver = Receiver()
        answers = _Answers(self.receiver, set())
        self.receiver.add("/graphql", self.recorded(answers.query))
        for prefix in ("/files", "/wandb"):
            self.receiver.add(prefix, self.recorded(lambda request: {"read": request.body.skip()}))

    def recorded(self, handler: Any) -> Any:
        def handle(request: Request) -> Any:
            text = request.path
            if hasattr(handler, "__self__"):  # a query: by its name
                asked = request.body.json()
                request.body = Read(asked)  # type: ignore[assignment]
                text = asked["query"].split("(")[0].split("{")[0].strip()
            with self._lock:
                self.asked.append(f"{request.method} {text}")
            return handler(request)

        return handle


class Read:
    """A body that has been read."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def json(self, _most: int) -> Any:
        return self.content

    def finish(self) -> bool:
        return False


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.receiver.close()


def test_the_users_account_gets_what_it_gets_without_nsml(tmp_path: Path, server: Server) -> None:
    account = {
        "WANDB_API_KEY": server.receiver.secret,
        "WANDB_BASE_URL": server.receiver.address(),
        "WANDB_RUN_ID": "one",
        "WANDB_NAME": "one",
        "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "600",
        "WANDB_DISABLE_GIT": "true",
        "WANDB_DISABLE_CODE": "true",
        "WANDB_X_DISABLE_STATS": "true",
    }
    asked: list[list[str]] = []
    for name, more in (("without", {"NSML_ECHO": "none"}), ("with", {})):
        folder = tmp_path / name
        folder.mkdir()
        done = run_wandb(folder, SHORT, **account, **more)
        assert done.returncode == 0, done.stderr
        assert f"ended well {server.receiver.address()}" in done.stdout
        # Files go in one batch or in several, as time has it, and are numbered within each.
        asked.append(sorted({re.sub(r"^PUT /\d+$", "PUT /number", one) for one in server.asked}))
        server.asked.clear()
        assert own_lines(done) == []
    assert "POST mutation UpsertBucket" in asked[0]
    assert asked[0] == asked[1]
    assert done.points() == [*SHORT_POINTS, ("best", 3, 0.25)]
    assert done.config() == {"lr": 0.5}
    assert [one["name"] for one in done.records("media")] == ["h"]


LATE_KEY = """
import os
import wandb
os.environ["WANDB_API_KEY"] = os.environ.pop("LATER_KEY")
os.environ["WANDB_BASE_URL"] = os.environ.pop("LATER_URL")
run = wandb.init(project="digits")
run.log({"loss": 1.0})
run.finish()
print("ended well", os.environ["WANDB_BASE_URL"])
"""


def test_a_key_that_the_program_sets_is_the_users(tmp_path: Path, server: Server) -> None:
    account = {"LATER_KEY": server.receiver.secret, "LATER_URL": server.receiver.address()}
    done = run_wandb(tmp_path, LATE_KEY, **account)
    assert done.returncode == 0, done.stderr
    assert f"ended well {server.receiver.address()}" in done.stdout
    assert "POST mutation UpsertBucket" in server.asked
    assert done.points() == [("loss", 0, 1.0)]


def test_nothing_is_lost_when_the_program_is_killed(tmp_path: Path) -> None:
    program = """
import os, signal
import wandb
run = wandb.init()
for i in range(300):
    run.log({"loss": i})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run_wandb(tmp_path, program)
    assert done.returncode == -9
    assert done.series("loss") == [(i, i) for i in range(300)]


def test_a_receiver_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    program = """
import wandb
run = wandb.init()
run.log({"loss": 0})
from nsml._echo._receiver import receiver
receiver().close()
for i in range(1, 5):
    run.log({"loss": i, "h": wandb.Histogram([i])})
run.config["late"] = 1
run.finish()
print("ended well")
"""
    done = run_wandb(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "ended well" in done.stdout
    assert done.series("loss") == [(i, i) for i in range(5)]
    assert done.config() == {"late": 1}
    assert len(done.records("media")) == 4


def test_child_processes_have_runs_of_their_own(tmp_path: Path) -> None:
    program = """
import multiprocessing, os, sys
import wandb

def child(name):
    with wandb.init(name=name) as run:
        for i in range(2):
            run.log({name: i})

if __name__ == "__main__":
    run = wandb.init(name="main")
    run.log({"loss": 1})
    if os.fork() == 0:
        child("forked")
        os._exit(0)
    assert os.wait()[1] == 0
    spawned = multiprocessing.get_context("spawn").Process(target=child, args=("spawned",))
    spawned.start()
    spawned.join()
    assert spawned.exitcode == 0
    run.log({"loss": 2})
    run.finish()
    print("ended well")
"""
    done = run_wandb(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "ended well" in done.stdout
    assert done.series("loss") == [(0, 1), (1, 2)]
    assert done.series("forked/forked") == [(0, 0), (1, 1)]
    assert done.series("spawned") == [(0, 0), (1, 1)]


def test_faults_of_the_program_stay_as_they_are(tmp_path: Path) -> None:
    program = """
import wandb
run = wandb.init(mode="offline")

class Odd:
    def __len__(self):
        raise ValueError("no length")

    def __float__(self):
        raise ValueError("no number")

for bad in ({7: 1}, [1], None, "x"):
    try:
        run.log(bad)
    except (TypeError, ValueError, AttributeError) as error:
        print(type(error).__name__)
run.log({"loss": 1.0, "odd": float("nan"), "": 2})
try:
    run.log({"loss": 2.0, "odd": Odd()})
except Exception as error:
    print(type(error).__name__)
run.log({"loss": 3.0})
run.finish()
try:
    run.log({"loss": 4.0})
except Exception as error:
    print(type(error).__name__)
print("ended well")
"""
    folders = [tmp_path / name for name in ("with", "without")]
    found = []
    for folder, more in zip(folders, ({}, {"NSML_ECHO": "none"}), strict=True):
        folder.mkdir()
        found.append(run_wandb(folder, program, **more))
    done = found[0]
    assert done.returncode == 0, done.stderr
    words = [
        [line for line in one.stdout.splitlines() if "Error" in line or "ended" in line]
        for one in found
    ]
    assert words[0] == words[1]
    assert words[0][-1] == "ended well"
    values = [value for _, value in done.series("loss")]
    assert values[:3] == [1.0, 2.0, 3.0]
    assert [value for _, value in done.series("odd")] == ["NaN"]
    assert own_lines(done) == []
