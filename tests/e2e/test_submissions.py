"""From a pushed dataset to a score on a real platform: what is hidden stays hidden, whatever is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platforms import LEVELS, end_all, platform_of, user_of
from tests.e2e.programs import wait_for, write_program

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


@pytest.mark.long(
    "a platform, three sessions for each of three submissions, and a kill of both programs"
)
@pytest.mark.parametrize("level", LEVELS)
def test_from_a_pushed_dataset_to_a_score(level: str, tmp_path: Path) -> None:
    with platform_of(level) as platform:
        lee = user_of(platform, "lee", tmp_path)

        def theirs(*words: str) -> Any:
            return json.loads(platform.nsml(*words, "-j", environment=lee).stdout)

        data = tmp_path / "triples"
        for name, rows in (("test", ROWS), ("test_submit", range(1, 4))):
            (data / name).mkdir(parents=True)
            (data / name / "test_data").write_text("".join(f"{one}\n" for one in rows))
            (data / name / "test_label").write_text("".join(f"{3 * one}\n" for one in rows))
        (data / "data_loader.py").write_text(LOADER)
        evaluation = tmp_path / "evaluation.py"
        evaluation.write_text(EVALUATION)
        platform.nsml("dataset", "push", "-l", "-e", str(evaluation), "triples", str(data))
        platform.nsml("dataset", "share", "-y", "triples", "--public")
        owner = platform.json("dataset", "info", "triples")["owner"]

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

        steps = [one["name"] for one in theirs("ps", "-a")["items"]]
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
