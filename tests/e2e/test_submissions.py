"""From a pushed dataset to a score on a real platform: what is hidden stays hidden, whatever is killed."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.engine.client import EngineError, translated
from nodeagent.engine.containers import containers_of
from tests.e2e.platforms import LEVELS, end_all, platform_of, user_of
from tests.e2e.programs import wait_for, write_program
from tests.engines import required_engine
from tests.support.in_process import Platform

ROWS = range(1, 41)
LOADER = """\
def test_data_loader(root_path):
    with open(f"{root_path}/test/test_data") as file:
        return [float(line) for line in file]
"""
EVALUATION = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
parser.add_argument("--test_label_path")
config = parser.parse_args()
with open(config.prediction) as file, open(config.test_label_path) as labels:
    right = [abs(float(one) - float(other)) < 1e-9 for one, other in zip(file, labels)]
print("evaluated", len(right), "rows")
print(sum(right) / len(right))
"""
IN_INFER = "def infer(data):\n"
PAUSES = "import time; time.sleep(5)"
PROGRAM = """\
import argparse, glob, pathlib, socket, sys
import nsml

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="train")
parser.add_argument("--pause", type=int, default=0)
parser.add_argument("--fails", action="store_true")
config = parser.parse_args()
weight = 1.0


def save(folder):
    pathlib.Path(folder, "weight").write_text(str(weight))


def load(folder):
    global weight
    weight = float(pathlib.Path(folder, "weight").read_text())


def is_shut():
    try:
        socket.create_connection(("127.0.0.1", 1), 1)
    except ConnectionRefusedError:
        pass
    names = [name for _, name in socket.if_nameindex()]
    return names == ["lo"] and not glob.glob("/data/**/test_label*", recursive=True)


def infer(data):
    print("hidden inputs:", data)
    if config.fails:
        raise RuntimeError(f"hidden inputs: {data}")
    return [(1.0, weight * one if is_shut() else -1) for one in data]


nsml.bind(save=save, load=load, infer=infer)
if config.pause:
    nsml.paused(scope=locals())
weight = 3.0
assert not glob.glob("/data/*/test*"), glob.glob("/data/*/test*")
nsml.save("best")
print("trained")
"""


def _push(platform: Platform, folder: Path, evaluation: str) -> str:
    """Push the dataset `triples`, open to everybody but for its hidden parts; its owner."""
    data = folder / "triples"
    for name, rows in (("test", ROWS), ("test_submit", range(1, 4))):
        (data / name).mkdir(parents=True)
        (data / name / "test_data").write_text("".join(f"{one}\n" for one in rows))
        (data / name / "test_label").write_text("".join(f"{3 * one}\n" for one in rows))
    (data / "data_loader.py").write_text(LOADER)
    program = folder / "evaluation.py"
    program.write_text(evaluation)
    platform.nsml("dataset", "push", "-l", "-e", str(program), "triples", str(data))
    platform.nsml("dataset", "share", "-y", "triples", "--public")
    return str(platform.json("dataset", "info", "triples")["owner"])


@pytest.mark.long(
    "a platform, three sessions for each of three submissions, and a kill of both programs"
)
@pytest.mark.parametrize("level", LEVELS)
def test_from_a_pushed_dataset_to_a_score(level: str, tmp_path: Path) -> None:
    with platform_of(level) as platform:
        lee = user_of(platform, "lee", tmp_path)

        def theirs(*words: str) -> Any:
            return json.loads(platform.nsml(*words, "-j", environment=lee).stdout)

        owner = _push(platform, tmp_path, EVALUATION)

        code = write_program(tmp_path / "code", PROGRAM)
        trained = []
        for more in ((), ("-a", "--fails")):
            words = ("run", "-g", "0", "-d", f"{owner}/triples", "--wait", "-o", "name", *more)
            run = platform.nsml(*words, cwd=code, environment=lee, timeout_s=120)
            trained.append(run.stdout.split()[0])

        dry = platform.nsml("submit", "-t", trained[0], environment=lee, timeout_s=120)
        assert "1.0" in dry.stdout
        assert "hidden inputs: [1.0, 2.0, 3.0]" in dry.stdout + dry.stderr

        failed = platform.nsml("submit", trained[1], environment=lee, check=False, timeout_s=120)
        assert failed.returncode == 1
        assert "infer or data_loader.py failed" in failed.stderr
        assert "hidden inputs" not in failed.stdout + failed.stderr

        made = platform.nsml("submit", "--no-wait", trained[0], environment=lee).stdout.split()[0]
        for program in ("agent", "controlplane"):
            platform.kill(program)
        platform.up()

        def scored() -> dict[str, Any]:
            found: dict[str, Any] = theirs("submission", "info", made)
            return found if found["state"] in {"SCORED", "FAILED"} else {}

        found = wait_for(scored, timeout_s=120, what="it is scored")
        assert (found["state"], found["score"], found["rank"]) == ("SCORED", 1.0, 1)

        steps = [one["name"] for one in theirs("ps", "-a", "--submissions")["items"]]
        for name in set(steps) - set(trained):
            logs = platform.nsml("logs", name, environment=lee, check=False)
            if "[1.0, 2.0, 3.0]" not in logs.stdout:  # of the dry run
                assert logs.returncode != 0, logs.stdout
                assert "hidden inputs:" not in logs.stdout
        for path in ("test/test_data", "test/test_label"):
            pulled = tmp_path / f"pulled-{Path(path).name}"
            words = ("dataset", "pull", f"{owner}/triples", str(pulled))
            platform.nsml(*words, environment=lee)
            assert not (pulled / path).exists()
        seen = platform.json("submission", "info", made)
        assert "evaluated 40 rows" in seen["evaluation_output"]
        end_all(platform, level)


class Steps:
    """The steps of a submission, and what they run in."""

    def __init__(self, platform: Platform, submission: str) -> None:
        self._platform = platform
        self._submission = submission
        self._engine, _ = required_engine()

    def session(self, kind: str) -> str:
        """The session of a step's last try, "" before it is made."""
        steps = self._platform.json("submission", "info", self._submission)["steps"]
        return next((one["session"] or "" for one in steps if one["kind"] == kind), "")

    def kill_container(self, session: str) -> None:
        """Kill a session's container, as soon as it runs."""
        (found,) = self._platform.json("ps", "-a", "--submissions", session)["items"]
        name = wait_for(lambda: self._running(found["id"]), what=f"{session} runs")
        self._engine.sdk.api.kill(name)

    def _running(self, session_id: str) -> str:
        mark = (self._platform.folder / "data/agent/engine.mark").read_text()
        for one in containers_of(self._engine, mark):
            with contextlib.suppress(EngineError), translated(self._engine.socket):
                found = self._engine.sdk.api.inspect_container(one.name)
                if one.replica.startswith(f"{session_id}.") and found["State"]["Running"]:
                    return one.name
        return ""


@pytest.mark.variant
@pytest.mark.long("a platform, and two tries of both steps of a submission")
def test_a_step_whose_container_is_killed_from_outside_is_repeated(tmp_path: Path) -> None:
    with platform_of("containers") as platform:
        _push(platform, tmp_path, f"{PAUSES}\n{EVALUATION}")
        program = PROGRAM.replace(IN_INFER, f"{IN_INFER}    {PAUSES}\n")
        code = write_program(tmp_path / "code", program)
        words = ("run", "-g", "0", "-d", "triples", "--wait", "-o", "name")
        trained = platform.nsml(*words, cwd=code, timeout_s=120).stdout.split()[0]
        made = platform.nsml("submit", "--no-wait", trained).stdout.split()[0]
        steps = Steps(platform, made)
        for kind in ("predict", "evaluate"):
            first = wait_for(partial(steps.session, kind), what=f"{kind} has a session")
            steps.kill_container(first)
            wait_for(partial(_has_other, steps, kind, first), what=f"{kind} has another one")

        def over() -> Any:
            seen = platform.json("submission", "info", made)
            return seen if seen["ended_at"] else None

        found = wait_for(over, timeout_s=120, what="it is over")
        assert (found["state"], found["score"], found["rank"]) == ("SCORED", 1.0, 1)
        end_all(platform, "containers")


def _has_other(steps: Steps, kind: str, first: str) -> bool:
    return steps.session(kind) not in {"", first}
