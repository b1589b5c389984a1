"""The hooks on other libraries: they cost nothing without one, and no fault of theirs reaches the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.echoes import Echoed, environment_of, run_echoed
from tests.unit.nsml.test_sdk_install import every_python

LIBRARY = """
__version__ = "9.1"

class Run:
    def log(self, values, step=None):
        "Log values."
        return ("logged", values, step)

def init():
    return Run()
"""
HOOK = """
from nsml._echo._hooks import Fence
from nsml._echo._sink import sink

def install(module):
    fence = Fence("wandb", module.__name__)
    fence.follow(module.Run, "log", logged)
    fence.follow(module.Run, "missing", logged)

def logged(result, run, values, step=None):
    assert result[0] == "logged"
    sink().metrics("wandb", values, step)
    sink().config("wandb", {"lr": 0.1, "layers": (1, 2), "other": object})
"""
PROGRAM = """
import sys
assert "nsml" not in sys.modules
import wandb
run = wandb.init()
for step in range(3):
    assert run.log({"loss": 0.5 * step, "deep": {"a": True}, "text": "x"}, step=step) == ("logged", {"loss": 0.5 * step, "deep": {"a": True}, "text": "x"}, step)
assert wandb.Run.log.__doc__ == "Log values."
print("ended well")
"""


def echoed(folder: Path, hook: str = HOOK, program: str = PROGRAM, **more: str) -> Echoed:
    """Run the program with a library named wandb, and a hook on it in place of the SDK's own."""
    environment_of(folder)
    (folder / "sdk/nsml/_echo/_wandb.py").write_text(hook)
    for compiled in folder.glob("sdk/nsml/_echo/__pycache__/_wandb.*"):
        compiled.unlink()
    (folder / "wandb.py").write_text(LIBRARY)
    return run_echoed(folder, program, **more)


@pytest.mark.parametrize("python", every_python())
def test_what_is_logged_elsewhere_is_recorded(tmp_path: Path, python: str) -> None:
    done = echoed(tmp_path, python=python)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended well\n", "")
    metrics = done.records("metric")
    assert [(one["step"], one["values"], one["origin"], one["summary"]) for one in metrics] == [
        record
        for step in range(3)
        for record in (
            (step, {"loss": 0.5 * step}, "wandb", True),
            (step, {"deep/a": 1}, "wandb", False),
        )
    ]
    [config] = done.records("config")  # the same again is no news
    assert config["values"] == {"lr": 0.1, "layers": [1, 2], "other": "<class 'object'>"}
    assert (config["origin"], config["run"]) == ("wandb", "")


@pytest.mark.parametrize(
    "more",
    [
        {"NSML_ECHO": "none"},
        {"NSML_ECHO": ""},
        {"NSML_ECHO": "mlflow, tensorboard"},
        {"NSML_STAGE": "predict"},
        {"NSML_RUN_DIR": ""},
    ],
    ids=lambda more: "=".join(*more.items()),
)
def test_nothing_is_hooked_where_it_is_switched_off(tmp_path: Path, more: dict[str, str]) -> None:
    program = PROGRAM + "assert 'nsml' not in sys.modules\n"
    done = echoed(tmp_path, program=program, **more)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended well\n", "")
    assert done.records("metric") == []


BROKEN = {
    "syntax": "def install(",
    "at import": "raise RuntimeError('deliberate')",
    "at install": "def install(module): raise RuntimeError('deliberate')",
    "before import": "def before_import(module): raise RuntimeError('deliberate')",
    "at a call": HOOK.replace(
        "    assert result", "    raise RuntimeError('deliberate')\n    assert result"
    ),
    "other signature": HOOK.replace(
        "def logged(result, run, values, step=None)", "def logged(result)"
    ),
}


@pytest.mark.parametrize("hook", BROKEN.values(), ids=BROKEN)
def test_a_broken_hook_is_removed_and_said_once(tmp_path: Path, hook: str) -> None:
    done = echoed(tmp_path, hook)
    assert (done.returncode, done.stdout) == (0, "ended well\n")
    [line] = done.stderr.splitlines()
    assert line.startswith(("nsml: W&B 9.1: ", "nsml: W&B: ")), line
    assert done.records("metric") == []


def test_hooks_follow_a_reload_and_loaders_stay_as_they_are(tmp_path: Path) -> None:
    program = """
import importlib, inspect, wandb
assert "exec_module" not in vars(wandb.__spec__.loader)
assert "class Run" in inspect.getsource(wandb)
importlib.reload(wandb)
wandb.init().log({"loss": 1.0})
"""
    done = echoed(tmp_path, program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.series("loss") == [(None, 1.0)]


def test_exceptions_of_the_library_and_of_signal_handlers_pass(tmp_path: Path) -> None:
    program = """
import signal, wandb

class Stop(Exception):
    pass

def stop(*_):
    raise Stop

try:
    wandb.init().log()
except TypeError as error:
    assert "values" in str(error), error
signal.signal(signal.SIGALRM, stop)

class Values(dict):
    def items(self):
        signal.raise_signal(signal.SIGALRM)
        return super().items()

try:
    wandb.init().log(Values(loss=1))
except Stop:
    print("stopped")
wandb.init().log({"loss": 2.0})
"""
    done = echoed(tmp_path, program=program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
    assert done.series("loss") == [(None, 2.0)]


def test_a_metric_belongs_to_the_first_that_reports_it(tmp_path: Path) -> None:
    program = """
import os, nsml, wandb
from nsml._echo._sink import sink
wandb.init().log({"loss": 1.0}, step=1)
sink().metrics("tensorboard", {"loss": 2.0, "other": 3.0}, 1)
nsml.report(loss=4.0, mine=1, step=2)
wandb.init().log({"loss": 5.0, "mine": 6.0, "more": 7.0}, step=3)
if os.fork() == 0:
    sink().metrics("mlflow", {"other": 8.0, "more": 9.0, "last": 10.0}, 4)
    os._exit(0)
os.wait()
sink().metrics("tensorboard", {"last": 11.0}, 5)
"""
    done = echoed(tmp_path, program=program)
    assert done.returncode == 0, done.stderr
    assert done.points() == [
        ("loss", 1, 1.0),
        ("other", 1, 3.0),
        ("loss", 2, 4.0),
        ("mine", 2, 1),
        ("more", 3, 7.0),
        ("last", 4, 10.0),
    ]
    assert done.stderr.count("nsml: ") == 5, done.stderr


def test_a_hook_may_change_the_arguments_of_a_call(tmp_path: Path) -> None:
    hook = """
from nsml._echo._hooks import Fence

def install(module):
    Fence("wandb", module.__name__).follow(module.Run, "log", change=arguments)

def arguments(run, values, step=None):
    if values == "broken":
        raise RuntimeError("deliberate")
    return ((run, values), {"step": 7}) if step is None else None
"""
    program = """
import wandb
run = wandb.init()
print(run.log(1), run.log(1, step=2), run.log("broken"), run.log(1))
"""
    done = echoed(tmp_path, hook, program)
    expected = [("logged", 1, 7), ("logged", 1, 2), ("logged", "broken", None), ("logged", 1, None)]
    assert done.stdout == " ".join(map(str, expected)) + "\n"
    assert done.stderr.count("deliberate") == 1


def test_each_run_of_a_library_has_a_prefix_of_its_own(tmp_path: Path) -> None:
    program = """
from nsml._echo._sink import sink

def prefix(run, name="", origin="mlflow"):
    return sink().prefix(origin, run, name)

for _ in range(2):  # they stay
    assert prefix("1", "main") == ""
    assert [prefix("2", "fold"), prefix("3", "fold"), prefix("4", "fold")] == ["fold/", "fold-2/", "fold-3/"]
    assert [prefix("5", "fold-2"), prefix("6"), prefix("7", "/")] == ["fold-2-2/", "6/", "run/"]
    assert prefix("3", origin="wandb") == ""
print("ended well")
"""
    done = echoed(tmp_path, program=program)
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr


def test_losses_and_accuracies_are_in_the_summary(tmp_path: Path) -> None:
    program = """
from nsml._echo._sink import sink
shown = ["loss", "Train/Loss", "val_acc", "test.accuracy", "train_loss_epoch", "fold/loss"]
others = ["lr", "lossy", "train_loss_step", "epoch", "accuracy/top5", "gloss"]
sink().metrics("mlflow", {name: 1.0 for name in shown + others}, 1)
sink().metrics("mlflow", {"lr": 1.0}, 2, summary=True)
sink().metrics("mlflow", {"loss": 1.0}, 2, summary=False)
"""
    done = echoed(tmp_path, program=program)
    found = [(sorted(one["values"]), one["summary"]) for one in done.records("metric")]
    assert found == [
        (
            sorted(
                ["loss", "Train/Loss", "val_acc", "test.accuracy", "train_loss_epoch", "fold/loss"]
            ),
            True,
        ),
        (sorted(["lr", "lossy", "train_loss_step", "epoch", "accuracy/top5", "gloss"]), False),
        (["lr"], True),
        (["loss"], False),
    ]
