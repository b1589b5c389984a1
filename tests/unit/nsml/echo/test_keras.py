"""Keras in sessions: what `fit` returns is what the session records, and training is the same as without nsml."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from nsml._session import FRAMEWORK_FILE
from tests.support.echoes import Echoed, environment_of, run_echoed
from tests.support.torch_environment import REPORTERS, require_torch

MODEL: Final = """
import json
import keras
import numpy as np

keras.utils.set_random_seed(7)
x = np.random.rand(64, 4).astype("float32")
y = x.sum(1, keepdims=True)

def model(rate=0.01):
    found = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    found.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
    return found
"""
FIT: Final = (
    MODEL
    + """
import time

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.4)

trained = model()
history = trained.fit(x, y, 16, epochs=3, validation_split=0.25, verbose=0, callbacks=[Slow()])
history = {name: [[step, value] for step, value in enumerate(values)] for name, values in history.history.items()}
tested = trained.evaluate(x, y, verbose=0, return_dict=True)
print(json.dumps([history, tested]))
"""
)


def run(folder: Path, program: str, backend: str = "jax", **more: str) -> Echoed:
    """Run a program that has the real Keras."""
    (folder / "run").mkdir(exist_ok=True)
    return run_echoed(
        folder, program, REPORTERS, python=require_torch(), KERAS_BACKEND=backend, **more
    )


def lines_of_keras(done: Echoed) -> list[str]:
    """What nsml has written about Keras."""
    return [line for line in done.stderr.splitlines() if line.startswith("nsml: Keras")]


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.variant)])
def test_epochs_batches_and_evaluations_are_recorded(tmp_path: Path, backend: str) -> None:
    done = run(tmp_path, FIT, backend)
    assert done.returncode == 0, done.stderr
    assert lines_of_keras(done) == []
    history, tested = json.loads(done.stdout)
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    for name, points in history.items():
        assert [list(one) for one in done.series(name)] == points
    for name, value in tested.items():
        assert done.series(f"evaluation_{name}") == [(2, value)]
    assert done.series("learning_rate") == [(step, 0.01) for step in range(3)]
    batches = done.series("batch_loss")
    steps = [step for step, _ in batches]
    assert 1 <= len(batches) <= 9  # of 9 batches that take 3.6 s or more
    assert steps == sorted(set(steps))
    assert set(steps) <= set(range(1, 10))
    config = done.config()
    assert (config["epochs"], config["steps_per_epoch"], config["batch_size"]) == (3, 3, 16)
    assert (config["loss"], config["model_parameters"]) == ("mse", 19)
    assert config["validation_split"] == 0.25
    assert (config["optimizer"]["name"], config["optimizer"]["learning_rate"]) == ("adam", 0.01)
    assert {one["origin"] for one in done.records("metric")} == {"keras"}


@pytest.mark.variant
def test_further_fits_continue_and_further_models_have_a_prefix(tmp_path: Path) -> None:
    program = (
        MODEL
        + """
first, second = model(), model()
losses = []
for _ in range(3):
    losses += first.fit(x, y, verbose=0).history["loss"]
losses += first.fit(x, y, epochs=5, initial_epoch=3, verbose=0).history["loss"]
print(json.dumps([losses, second.name, second.fit(x, y, epochs=2, verbose=0).history["loss"]]))
"""
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    losses, name, others = json.loads(done.stdout)
    assert done.series("loss") == [*enumerate(losses)]
    assert len(losses) == 5
    assert done.series(f"{name}/loss") == [*enumerate(others)]


def test_files_of_model_checkpoint_become_checkpoints(tmp_path: Path) -> None:
    program = (
        MODEL
        + """
import os
Checkpoint = keras.callbacks.ModelCheckpoint
callbacks = [
    Checkpoint("saved/epoch-{epoch}.keras"),
    Checkpoint("best.weights.h5", save_weights_only=True, save_best_only=True, monitor="loss", mode="max", initial_value_threshold=1e9),
    Checkpoint("last.weights.h5", save_weights_only=True, save_freq=2),
]
trained = model()
trained.fit(x, y, epochs=2, verbose=0, callbacks=callbacks)
kept = os.path.join(os.environ["NSML_RUN_DIR"], "checkpoints")
[folder] = [one for one in os.listdir(kept) if "epoch-2" in one]
loaded = keras.models.load_model(os.path.join(kept, folder, "model", "epoch-2.keras"))
assert np.array_equal(loaded.predict(x, verbose=0), trained.predict(x, verbose=0))
print("ended well")
"""
    )
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr
    assert lines_of_keras(done) == []
    found = [
        (one["name"], one["step"], [path for path, _ in one["files"]])
        for one in done.records("checkpoint")
    ]
    assert sorted(found) == [
        ("epoch-1.keras", 2, [FRAMEWORK_FILE, "epoch-1.keras"]),
        ("epoch-2.keras", 4, [FRAMEWORK_FILE, "epoch-2.keras"]),
        ("last.weights.h5", 2, [FRAMEWORK_FILE, "last.weights.h5"]),
        ("last.weights.h5", 4, [FRAMEWORK_FILE, "last.weights.h5"]),
    ]
    assert all(one["size"] > 1000 for one in done.records("checkpoint"))
    assert all(set(one["summary"]) >= {"loss", "mae"} for one in done.records("checkpoint"))
    assert not (done.run_dir / "resumable.json").exists()


@pytest.mark.variant
@pytest.mark.long("Keras is imported twice, and compiles")
def test_training_is_the_same_with_and_without_the_hooks(tmp_path: Path) -> None:
    program = (
        MODEL
        + """
import sys
seen = []

class Spy(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.append(("batch", batch, sorted(logs)))
    def on_epoch_end(self, epoch, logs=None):
        seen.append(("epoch", epoch, sorted(logs)))
    def on_test_end(self, logs=None):
        seen.append(("test", sorted(logs)))

trained = model()
history = trained.fit(x, y, epochs=3, validation_split=0.25, verbose=2, callbacks=[Spy(), keras.callbacks.EarlyStopping(patience=1)])
trained.evaluate(x, y, verbose=2, callbacks=[Spy()])
weights = [float(one.sum()) for one in trained.get_weights()]
print(json.dumps([history.history, seen, weights]), file=sys.stderr)
"""
    )
    found = []
    for number, more in enumerate(({}, {"NSML_ECHO": "none"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run(folder, program, **more)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stderr.splitlines()[-1]))
        assert bool(done.series("loss")) == (not more)
    assert found[0] == found[1]


BROKEN: Final = {
    "fit": "    def fit_begins(self, *args: Any, **kwargs: Any) -> None:\n",
    "begin": "        keras = callbacks.model\n",
    "batch": "        fit.batches = batch + 1\n",
    "epoch": "        values = dict(_logs(logs or {}))\n",
    "checkpoint": '        logs = kwargs.get("logs", args[2] if len(args) > 2 else None)\n',
}


@pytest.mark.parametrize(
    "broken",
    [pytest.param(one, marks=[pytest.mark.variant] if one != "batch" else []) for one in BROKEN],
)
def test_training_goes_on_with_a_broken_hook(tmp_path: Path, broken: str) -> None:
    program = (
        MODEL
        + """
trained = model()
trained.fit(x, y, epochs=2, verbose=0, callbacks=[keras.callbacks.ModelCheckpoint("a.keras")])
trained.evaluate(x, y, verbose=0)
print("ended well")
"""
    )
    environment_of(tmp_path)
    path = tmp_path / "sdk/nsml/_echo/_keras.py"
    text, line = path.read_text(), BROKEN[broken]
    assert line in text
    indent = line[: len(line) - len(line.lstrip())] + ("    " if "def " in line else "")
    path.write_text(text.replace(line, f"{line}{indent}raise KeyError('deliberate')\n"))
    for compiled in path.parent.glob("__pycache__/_keras.*"):
        compiled.unlink()
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr
    [said] = lines_of_keras(done)
    assert "deliberate" in said


@pytest.mark.variant
def test_models_of_other_shapes_are_recorded(tmp_path: Path) -> None:
    """Several outputs, a custom train step, a schedule of learning rates, and a fit that raises."""
    program = (
        MODEL
        + """
given = keras.Input((4,))
both = keras.Model(given, [keras.layers.Dense(1, name="a")(given), keras.layers.Dense(1, name="b")(given)])
rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
both.compile(keras.optimizers.SGD(rate), loss={"a": "mse", "b": keras.losses.Huber()}, metrics={"a": ["mae"]})
history = both.fit(x, {"a": y, "b": y}, epochs=2, verbose=0).history

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("of the program")

try:
    both.fit(x, {"a": y, "b": y}, epochs=9, verbose=0, callbacks=[Stop()])
except RuntimeError as error:
    assert str(error) == "of the program"
else:
    raise AssertionError
history2 = both.fit(x, {"a": y, "b": y}, epochs=1, verbose=0).history
print(json.dumps([history, history2]))
"""
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert lines_of_keras(done) == []
    history, after = json.loads(done.stdout)
    for name in ("loss", "a_loss", "a_mae"):
        values: list[Any] = [value for _, value in done.series(name)]
        assert values == [*history[name], *after[name]], name
    losses = done.config()["loss"]
    assert losses["a"] == "mse"
    assert losses["b"].startswith("huber")
    rates = [value for _, value in done.series("learning_rate")]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 3


RESUMABLE: Final = (
    MODEL
    + """
import os, sys, time

class Preempt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.batches = getattr(self, "batches", 0) + 1
        if os.environ["NSML_ATTEMPT"] == "1" and self.batches == <AT>:
            <END>
            with open(os.environ["NSML_RUN_DIR"] + "/notice.json", "w") as file:
                json.dump({"goes": True, "reason": "make room"}, file)
            time.sleep(0.3)

callbacks = [keras.callbacks.BackupAndRestore("work/backup", <FREQ>), Preempt(), <MORE>]
trained = model()
history = trained.fit(x, y, 16, epochs=5, verbose=0, shuffle=False, callbacks=callbacks)
again = trained.fit(x, y, 16, epochs=2, verbose=0, shuffle=False)
print(json.dumps([again.epoch, [one.ravel().tolist() for one in trained.get_weights()]]))
print(json.dumps([float(one) for one in trained.optimizer.variables[0:1]]))
print(json.dumps(history.epoch), file=sys.stderr)
"""
)


def attempt(folder: Path, number: str, resumes: str = "", **parts: str) -> Echoed:
    """Run an attempt of the resumable program."""
    program = RESUMABLE
    for name, text in ({"AT": "7", "END": "pass", "FREQ": "'epoch'", "MORE": ""} | parts).items():
        program = program.replace(f"<{name}>", text)
    if number != "1":
        (folder / "run/notice.json").unlink(missing_ok=True)
    more = {"NSML_RESUME": resumes} if resumes else {}
    return run(folder, program, NSML_ATTEMPT=number, **more)


def folders(tmp_path: Path, *names: str) -> list[Path]:
    found = [tmp_path / name for name in names]
    for folder in found:
        folder.mkdir()
    return found


@pytest.mark.long("four programs import Keras")
@pytest.mark.parametrize(
    "freq", ["'epoch'", pytest.param("False", marks=pytest.mark.variant)], ids=["epoch", "notice"]
)
def test_with_a_backup_a_preempted_fit_ends_as_one_that_was_not(tmp_path: Path, freq: str) -> None:
    whole_folder, moved = folders(tmp_path, "whole", "moved")
    whole = attempt(whole_folder, "2", FREQ=freq)
    assert whole.returncode == 0, whole.stderr
    first = attempt(moved, "1", FREQ=freq)
    assert first.returncode == 75, first.stderr
    assert json.loads((first.run_dir / "left.json").read_text()) == {"checkpoint": "backup"}
    assert json.loads((first.run_dir / "resumable.json").read_text()) == {
        "save": True,
        "load": True,
    }
    [*_, last] = first.records("checkpoint")
    assert (last["name"], last["step"]) == ("backup", 8)
    assert "loss" in last["summary"]
    shutil.rmtree(moved / "work")  # another node
    second = attempt(moved, "2", "backup", FREQ=freq)
    assert second.returncode == 0, second.stderr
    assert second.stdout == whole.stdout
    assert json.loads(second.stderr.splitlines()[-1]) == [2, 3, 4]
    assert "Keras: goes on from checkpoint backup" in second.stderr
    assert sorted(second.series("loss")) == whole.series("loss")
    assert not (moved / "work/backup").exists()


@pytest.mark.variant
@pytest.mark.long("three programs import Keras")
def test_a_program_that_crashed_goes_on_from_its_backup(tmp_path: Path) -> None:
    """Also if a file of ModelCheckpoint is the last checkpoint, and an older backup is in the program's folder."""
    whole_folder, folder = folders(tmp_path, "whole", "crashed")
    more = "keras.callbacks.ModelCheckpoint('a.keras', save_freq=3), keras.callbacks.EarlyStopping('loss', patience=9)"
    first = attempt(folder, "1", END="os._exit(3)", AT="15", MORE=more)
    assert first.returncode == 3, first.stderr
    kept = [(one["name"], one["step"]) for one in first.records("checkpoint")]
    assert [step for name, step in kept if name == "backup"] == [4, 8, 12]
    assert [step for name, step in kept if name == "a.keras"] == [3, 6, 9, 12, 15][: len(kept) - 3]
    whole = attempt(whole_folder, "2", MORE=more)
    assert whole.returncode == 0, whole.stderr
    stale = {"epoch": 1, "batch": 0}
    (folder / "work/backup/training_metadata.json").write_text(json.dumps(stale))
    second = attempt(folder, "2", "a.keras", MORE=more)
    assert second.returncode == 0, second.stderr
    assert second.stdout == whole.stdout
    assert "Keras: goes on from checkpoint backup" in second.stderr
    assert "Keras: EarlyStopping: begins anew" in second.stderr
    assert json.loads(second.stderr.splitlines()[-1]) == [3, 4]
