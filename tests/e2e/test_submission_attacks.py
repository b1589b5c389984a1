"""Submissions that are written to break out: by what they predict, by what they leave behind, by what is counted of them.

What programs find and send from within the steps is in `test_label_theft.py`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platforms import user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

ROWS = 4
SAVED_BYTES = 8 << 20
"""What a program saves beside its prediction: too much not to be seen in any sum."""
HOSTILE = ("link", "archive")
"""Predictions, and what holds them, that are no file of rows."""
MORE_HOSTILE = (*HOSTILE, "pipe", "above", "sparse", "bomb")
LOADER = """\
def test_data_loader(root_path):
    with open(root_path + "/test/test_data") as file:
        return file.read().split()
"""
EVALUATION = """\
# An owner who shows what the process of an evaluation has.
import argparse, json, os, resource, sys
parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
parser.add_argument("--test_label_path")
config = parser.parse_args()
names = ["/proc/self/fd/" + one for one in os.listdir("/proc/self/fd")]
files = [os.readlink(one) for one in names if os.path.lexists(one)]  # not that of the listing, which is closed
left = {folder: sorted(os.listdir(folder)) for folder in ("/tmp", "/dev/shm", os.path.dirname(config.prediction))}
sys.stdout.write("has " + json.dumps({  # at once: what another stream writes meanwhile is not amid it
    "environ": dict(os.environ),
    "uid": os.getuid(),
    "path": sys.path,
    "modules": sorted({one.__file__ for one in list(sys.modules.values()) if getattr(one, "__file__", None)}),
    "maps": sorted({line.split()[-1] for line in open("/proc/self/maps") if "/" in line}),
    "files": files,
    "left": left,
    "memory": open("/proc/sysvipc/shm").read().splitlines()[1:],
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "dumped": [name for name in left["/tmp"] if name.startswith("core")],
}) + "\\n")
with open(config.prediction, encoding="utf-8") as file:
    given = [line.strip() for line in file]
with open(config.test_label_path) as file:
    labels = [line.strip() for line in file]
if given == ["crash"] * len(labels):
    os.abort()
assert len(given) == len(labels)
print(sum(one == other for one, other in zip(given, labels)) / len(labels))
"""
PROGRAM = """\
import argparse, json, os, pathlib, pickle, re, subprocess, sys, time
import nsml
from nsml._report import encode

MODES = %(modes)r
parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="train")
parser.add_argument("--pause", type=int, default=0)
config = parser.parse_args()
session = nsml.bind.__self__
now = {"mode": "train"}


def save(folder):
    pathlib.Path(folder, "mode").write_text(json.dumps(now))


def load(folder):
    now.update(json.loads(pathlib.Path(folder, "mode").read_text()))


def attempt(action, *arguments, **more):
    try:
        return action(*arguments, **more)
    except BaseException:
        return None


def artifact(files, name="prediction", number=7):
    # As `docs/sdk-protocol.md` has it, with whatever is in the folder.
    run = pathlib.Path(os.environ["NSML_RUN_DIR"])
    folder = run / "checkpoints" / ("%%d-%%%%artifact" %% number) / "model"
    folder.mkdir(parents=True)
    for path, make in files.items():
        attempt(make, folder / path)
    record = {"kind": "artifact", "time": time.time(), "name": name, "size": 1,
              "folder": folder.relative_to(run / "checkpoints").as_posix(), "files": [(path, 1) for path in files]}
    session.spool.append(encode(record), must_arrive=True)


def trees():
    # The folder of all trees of the node, as the mount of one of them names it.
    [line] = [line for line in open("/proc/self/mountinfo") if " /data/marks " in line]
    return os.path.dirname(line.split()[3])


class Code:
    def __reduce__(self):
        return os.system, ("echo broken out",)


def hostile(mode):
    if mode == "link":
        artifact({"prediction": lambda path: path.symlink_to(trees())})
    elif mode == "pipe":
        artifact({"prediction": os.mkfifo, "device": lambda path: os.mknod(path, 0o60666, 0x801)})
    elif mode == "above":
        artifact({"../../../../spec.json": lambda path: path, "../prediction": lambda path: path.write_text("1")})
    elif mode == "sparse":
        artifact({"prediction": lambda path: [path.touch(), os.truncate(path, 1 << 40)]})
    os._exit(0)


def tell():
    # Saves, loads and reports, so much of each as it likes.
    session._stage = ""
    for number in range(3):
        nsml.report(step=number, loss=1.0)
    nsml.save("told", save_fn=lambda folder: pathlib.Path(folder, "x").write_bytes(os.urandom(%(bytes)d)))
    path = pathlib.Path("/tmp/much")
    path.write_bytes(os.urandom(%(bytes)d))
    attempt(session.keep_file, "told", str(path))
    artifact({"prediction": lambda path: path.write_text("x" * 99)}, name="another", number=8)
    nsml.load("link", load_fn=lambda folder: None, session=now["of"])
    os.write(1, os.urandom(%(bytes)d))


def infer(data):
    mode = now["mode"]
    if mode in ("link", "pipe", "above", "sparse"):
        hostile(mode)
    if mode == "archive":
        return [(1, pickle.dumps(Code(), 0).decode())]
    if mode == "bomb":
        return [(1, "[" * 1_000_000)]
    if mode == "crash":
        return [(1, "crash") for _ in data]
    if mode == "tells":
        tell()
    return [(1, one.replace("input", "label")) for one in data]


nsml.bind(save=save, load=load, infer=infer)
if config.pause:
    nsml.paused(scope=locals())
for mode in MODES:
    now.update(mode=mode, of=nsml.SESSION_NAME)
    nsml.save(mode)
print("trained")
"""
GUESSING = """\
import os
print("uid", os.getuid(), flush=True)
for name in sorted(os.listdir("/data/guess")):
    print("links", name, os.stat("/data/guess/" + name).st_nlink, flush=True)
"""
PRELOADED = """\
#include <unistd.h>
#include <stdlib.h>
__attribute__((constructor)) static void began(void) { setenv("BROKEN_OUT", "preloaded", 1); }
"""
OF_THE_PARTICIPANT = "import os; os.environ['BROKEN_OUT'] = __name__\n"


def _marks(folder: Path, labels: list[str]) -> tuple[Path, Path]:
    """The owner's dataset and evaluation."""
    (data := folder / "marks" / "test").mkdir(parents=True)
    inputs = [one.replace("label", "input") for one in labels]
    (data / "test_data").write_text("".join(f"{one}\n" for one in inputs))
    (data / "test_label").write_text("".join(f"{one}\n" for one in labels))
    (data.parent / "data_loader.py").write_text(LOADER)
    evaluation = folder / "evaluation.py"
    evaluation.write_text(EVALUATION)
    return data.parent, evaluation


def _project(folder: Path, modes: tuple[str, ...]) -> Path:
    """The participant's: beside its program whatever Python and the loader look for."""
    code = write_program(folder, PROGRAM % {"modes": modes, "bytes": SAVED_BYTES})
    for name in ("sitecustomize", "usercustomize", "evaluation", "data_loader", "resource"):
        (code / f"{name}.py").write_text(OF_THE_PARTICIPANT)
    (code / "out.pth").write_text("import os; os.environ['BROKEN_OUT'] = 'pth'\n")
    source = folder.parent / "out.c"
    source.write_text(PRELOADED)
    built = ["cc", "-shared", "-fPIC", "-o", str(code / "out.so"), str(source)]
    subprocess.run(built, check=True, timeout=60)
    return code


@pytest.mark.long("a platform, and a prediction and an evaluation for each of several submissions")
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(HOSTILE, id="some"),
        pytest.param(MORE_HOSTILE, marks=pytest.mark.variant, id="all"),
    ],
)
def test_a_submission_breaks_nothing_but_itself(hostile: tuple[str, ...], tmp_path: Path) -> None:
    labels = [f"label-{secrets.token_hex(8)}" for _ in range(ROWS)]
    modes = (*hostile, "crash", "tells")
    with Platform(simulate_gpus=1) as platform:
        lee = user_of(platform, "lee", tmp_path)
        data, evaluation = _marks(tmp_path, labels)
        platform.nsml("dataset", "push", "-l", "-e", str(evaluation), "marks", str(data))
        platform.nsml("dataset", "share", "-y", "marks", "--public")
        owner = platform.json("dataset", "info", "marks")["owner"]
        run = ("run", "-g", "0", "-c", "0.5", "--memory", "200M", "--wait", "-o", "name")

        def theirs(*words: str) -> Any:
            return json.loads(platform.nsml(*words, "-j", environment=lee).stdout)

        given = {
            "LD_PRELOAD": "/app/out.so",
            "LD_AUDIT": "/app/out.so",
            "PYTHONPATH": "/app",
            "PYTHONSTARTUP": "/app/sitecustomize.py",
            "PYTHONINSPECT": "1",
            "BASH_ENV": "/app/out.pth",
            "BROKEN_OUT": "given",
        }
        variables = [word for one in given.items() for word in ("--env", "=".join(one))]
        code = _project(tmp_path / "code", modes)
        words = (*run, *variables, "-d", f"{owner}/marks")
        trained = platform.nsml(*words, cwd=code, environment=lee, timeout_s=120).stdout.split()[0]

        made = {}
        before = theirs("storage")["kept_bytes"]
        for mode in modes:
            words = ("submit", "--no-wait", trained, mode)
            made[mode] = platform.nsml(*words, environment=lee).stdout.split()[0]

        def over() -> dict[str, Any]:
            found = {mode: platform.json("submission", "info", one) for mode, one in made.items()}
            return (
                found if all(one["state"] in {"SCORED", "FAILED"} for one in found.values()) else {}
            )

        found = wait_for(over, timeout_s=240, what="all submissions are over")
        ends = {mode: (one["state"], one.get("cause", "")) for mode, one in found.items()}
        assert ends.pop("tells")[0] == "SCORED"
        assert {state for state, _ in ends.values()} == {"FAILED"}, ends
        evaluated = {"archive", "bomb", "crash"} & made.keys()
        assert {ends[mode][1] for mode in evaluated} == {"EVALUATION_FAILED"}, ends
        assert found["tells"]["score"] == 1.0

        # What a program saved, printed and reported is nowhere in what its user is told.
        assert theirs("storage")["kept_bytes"] - before < SAVED_BYTES
        shown = theirs("model", "info", trained, "link")
        assert not shown.get("users")
        assert not shown.get("hidden_users")

        # Each evaluation had its owner's code and the prediction as a file, and nothing of the participant.
        uids = set()
        for mode in (*evaluated, "tells"):
            session = found[mode]["steps"][1]["session"]
            said = _whole_log(platform, session)
            assert "broken out" not in said
            [line] = [line for line in said.splitlines() if line.startswith("has ")]
            has = json.loads(line.removeprefix("has "))
            uids.add(has["uid"])
            assert not given.keys() & has["environ"].keys() - {"PYTHONPATH"}, has["environ"]
            assert "/app" not in has["environ"]["PYTHONPATH"].split(":")
            places = [*has["modules"], *has["maps"], *has["path"]]
            assert [one for one in places if one.startswith(("/data/", "/app"))] == []
            assert "BROKEN_OUT" not in has["environ"]
            assert [one for one in has["files"] if not _is_its_own(one)] == []
            assert has["left"]["/dev/shm"] == has["memory"] == []
            left = [one for one in has["left"]["/tmp"] if not one.startswith("nsml-")]
            assert set(left) <= set(platform.folder.parts), "on the way to its environment"
            assert has["left"].popitem()[1] == ["prediction"]
            assert max(has["core"]) <= 1, "none is written, nor piped to a program of the node"
            assert has["dumped"] == []

        # A file with the labels of the participant's own making shows not that the node has one, too.
        (guess := tmp_path / "guess").mkdir()
        (guess / "right").write_bytes((data / "test/test_label").read_bytes())
        (guess / "wrong").write_text("label\n")
        (guess / "inputs").write_bytes((data / "test/test_data").read_bytes())
        platform.nsml("dataset", "push", "guess", str(guess), environment=lee)
        code = write_program(tmp_path / "guessing", GUESSING)
        words = (*run, "-d", "guess")
        ran = platform.nsml(*words, cwd=code, environment=lee, timeout_s=120).stdout.split()[0]
        log = platform.nsml("logs", ran, environment=lee).stdout
        assert {line.split()[2] for line in log.splitlines() if line.startswith("links")} == {"1"}

        # Whoever runs on the node later has the account of no step, and of an evaluation nothing is left there.
        [line] = [line for line in log.splitlines() if line.startswith("uid")]
        assert int(line.split()[1]) not in uids
        agent = platform.folder / "data/agent"
        wait_for(
            lambda: _with_labels(agent / "replicas", labels) == [], what="the steps' files are gone"
        )
        assert {
            path.stat().st_mode & 0o077 for path in (agent / "datasets", agent / "replicas")
        } == {0}


def _whole_log(platform: Platform, evaluation: str) -> str:
    """The log of an evaluation once all of its line has arrived: scores do not wait for it."""
    said = ""

    def is_whole() -> bool:
        nonlocal said
        said = platform.nsml("logs", evaluation).stdout
        return any(one.startswith("has ") and one.endswith("}") for one in said.splitlines())

    try:
        wait_for(is_whole, what=f"the log of {evaluation} is whole")
    except AssertionError as error:
        raise AssertionError(f"{error}; it has {len(said)} characters: {said[-2000:]}") from None
    return said


def _with_labels(folder: Path, labels: list[str]) -> list[Path]:
    """Files with any of the labels."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it is being removed
            if path.is_file() and any(one.encode() in path.read_bytes() for one in labels):
                found.append(path)
    return found


def _is_its_own(file: str) -> bool:
    """Whether an open file is a standard stream of an evaluation."""
    return file == "/dev/null" or file.startswith("pipe:") or file.endswith("/output")
