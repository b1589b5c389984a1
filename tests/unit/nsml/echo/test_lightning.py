"""Lightning: what its loggers get is recorded, with the real library."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.support.echoes import Echoed, run_echoed
from tests.support.torch_environment import REPORTERS, require_torch, smaller

pytestmark = pytest.mark.long("each program imports torch and Lightning")

MODEL = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader, TensorDataset
from {package} import LightningModule, Trainer, seed_everything
from {package}.loggers import CSVLogger

class Model(LightningModule):
    def __init__(self, lr=0.1, widths=(4, 1)):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(*widths)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log_dict({{"other/a": index, "other/b": loss * 2}})
        return loss

    def validation_step(self, batch, index):
        self.log("val_acc", self.layer(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

seed_everything(1, verbose=False)
data = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4)
"""
FIT = (
    MODEL
    + """
trainer = Trainer(
    accelerator="cpu", max_epochs=3, log_every_n_steps=2, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, logger={logger}, {options}
)
trainer.fit(Model(lr=0.05), data, data)
print("global step", trainer.global_step, [one.__class__.__name__ for one in trainer.callbacks], trainer.log_dir is None)
"""
)


def run(folder: Path, program: str, **more: str) -> Echoed:
    """Run a program that has Lightning without what its metrics import for seconds where it is there."""
    python, reporters = smaller(folder, "scipy", "torchvision", "transformers")
    return run_echoed(folder, program, reporters, python=python, CUDA_VISIBLE_DEVICES="", **more)


def fitted(
    folder: Path, logger: str, *, package: str = "lightning.pytorch", options: str = "", **more: str
) -> Echoed:
    program = FIT.format(package=package, logger=logger, options=options)
    if package == "lightning.pytorch":
        return run(folder, program, **more)
    # The other has all that Lightning may find.
    python = require_torch()
    return run_echoed(folder, program, REPORTERS, python=python, CUDA_VISIBLE_DEVICES="", **more)


@pytest.mark.parametrize(
    "package", ["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.variant)]
)
def test_its_curves_are_those_of_its_own_logger(tmp_path: Path, package: str) -> None:
    done = fitted(tmp_path, "CSVLogger('logs')", package=package)
    assert done.returncode == 0, done.stderr
    [written] = tmp_path.glob("logs/**/metrics.csv")
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in csv.DictReader(written.open()):
        for name, value in row.items():
            if value and name != "step":
                expected.setdefault(name, []).append((int(row["step"]), float(value)))
    assert set(expected) == {
        "epoch",
        "train_loss_step",
        "train_loss_epoch",
        "other/a",
        "other/b",
        "val_acc",
    }
    for name, points in expected.items():
        recorded = done.series(name)
        if name == "epoch":  # a row of the file is of several calls
            assert {*recorded} == {*points}
            continue
        assert recorded == [(step, pytest.approx(value, rel=1e-5)) for step, value in points]
    assert {one["origin"] for one in done.records("metric")} == {"lightning"}
    shown = {name for one in done.records("metric") if one["summary"] for name in one["values"]}
    assert shown == {"train_loss_epoch", "val_acc"}
    assert done.config() == {"lr": 0.05, "widths": [4, 1]}


@pytest.mark.variant
def test_without_a_logger_it_is_the_same_and_its_result_stays(tmp_path: Path) -> None:
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    done = fitted(tmp_path / "with", "False")
    assert done.returncode == 0, done.stderr
    assert len(done.series("train_loss_step")) == 12
    assert [step for step, _ in done.series("val_acc")] == [7, 15, 23]
    bare = fitted(tmp_path / "without", "False", NSML_ECHO="none")
    assert bare.records("metric") == []
    assert (bare.returncode, bare.stdout) == (0, done.stdout)


@pytest.mark.variant
def test_of_two_processes_the_first_reports(tmp_path: Path) -> None:
    options = "devices=2, strategy='ddp', "
    done = fitted(tmp_path, "False", options=options, NSML_ECHO="lightning")
    assert done.returncode == 0, done.stderr
    assert [step for step, _ in done.series("val_acc")] == [3, 7, 11]
    assert len(set((tmp_path / "run/spool").glob("*.records"))) == 1


@pytest.mark.variant
def test_fabric(tmp_path: Path) -> None:
    program = """
from lightning.fabric import Fabric
import torch
fabric = Fabric(accelerator="cpu")
for step in range(3):
    fabric.log("loss", torch.tensor(0.5 * step), step=step)
    fabric.log_dict({"a": step, "b": 2 * step}, step)
"""
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.series("loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert done.series("b") == [(0, 0), (1, 2), (2, 4)]


@pytest.mark.variant
def test_with_its_insides_changed_the_training_is_the_same(tmp_path: Path) -> None:
    program = FIT.format(package="lightning.pytorch", logger="False", options="").replace(
        "seed_everything(1",
        "from nsml._echo import _lightning\n_lightning._batch_ended = lambda *_: 1 / 0\nseed_everything(1",
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("global step 24")
    assert done.stderr.count("Lightning 2.") == 1
    assert json.dumps(done.records("metric")).count("train_loss_step") <= 1


PREEMPTED = (
    MODEL
    + """
import json, os, time
from {package}.callbacks import Callback, ModelCheckpoint

class Preempt(Callback):
    def on_train_batch_end(self, trainer, *_):
        if os.environ.get("NSML_ATTEMPT") == "1" and trainer.global_step == {at}:
            with open(os.environ["NSML_RUN_DIR"] + "/notice.json", "w") as file:
                json.dump({{"goes": True, "reason": "make room"}}, file)
            time.sleep(0.3)

class Batches:  # resumable within an epoch, which torch's own DataLoader is not
    at = 0

    def __len__(self):
        return 8

    def __iter__(self):
        while self.at < 8:
            self.at += 1
            yield (batches[self.at - 1],)
        self.at = 0

    def state_dict(self):
        return {{"at": self.at}}

    def load_state_dict(self, state):
        self.at = state["at"]

batches = torch.randn(8, 4, 4)
data = Batches()
model = Model(lr=0.05)
trainer = Trainer(
    accelerator="cpu", max_epochs=3, log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
    logger=False, callbacks=[Preempt(), ModelCheckpoint("kept", every_n_train_steps=5, save_top_k=-1)], {options}
)
trainer.fit(model, data)
print("weights", trainer.global_step, [round(one, 6) for one in model.layer.weight.detach().flatten().tolist()])
"""
)


@pytest.mark.parametrize(
    "options", ["", pytest.param("devices=2, strategy='ddp'", marks=pytest.mark.variant)]
)
def test_a_preempted_training_ends_as_one_that_was_not(tmp_path: Path, options: str) -> None:
    program = PREEMPTED.format(package="lightning.pytorch", options=options, at=7)
    folders = {name: tmp_path / name for name in ("whole", "moved")}
    for folder in folders.values():
        folder.mkdir()

    def attempt(folder: Path, number: str, **more: str) -> Echoed:
        return run(folder, program, NSML_ATTEMPT=number, **more)

    whole = attempt(folders["whole"], "2")
    assert whole.returncode == 0, whole.stderr
    first = attempt(folders["moved"], "1")
    assert first.returncode == 75, first.stderr
    left = json.loads((first.run_dir / "left.json").read_text())
    names = [one["name"] for one in first.records("checkpoint")]
    assert names == ["epoch=0-step=5", left["checkpoint"]], names
    (first.run_dir / "notice.json").unlink()
    second = attempt(folders["moved"], "2", NSML_RESUME=left["checkpoint"])
    assert second.returncode == 0, second.stderr
    assert second.stdout == whole.stdout
    for name in ("train_loss_step", "other/b"):
        steps = [step for step, _ in second.series(name)]
        assert sorted(steps) == [step for step, _ in whole.series(name)], name
        assert sorted(second.series(name)) == [
            (step, pytest.approx(value, rel=1e-5)) for step, value in whole.series(name)
        ]


@pytest.mark.variant
def test_a_fit_that_raised_leaves_nothing_in_memory(tmp_path: Path) -> None:
    program = (
        MODEL
        + """
import gc, weakref

class Failing(Model):
    def training_step(self, batch, index):
        if index == 2:
            raise MemoryError("of the program")
        return super().training_step(batch, index)

def fit(kind):
    model = kind()
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, logger=False,
    )
    try:
        trainer.fit(model, data)
    except MemoryError as error:
        print(error)
    return weakref.ref(trainer), weakref.ref(model)

left = fit(Failing)
gc.collect()
print([one() for one in left])
fit(Model)
"""
    ).format(package="lightning.pytorch")
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "of the program\n[None, None]\n"
    assert len(done.series("train_loss_epoch")) == 1
