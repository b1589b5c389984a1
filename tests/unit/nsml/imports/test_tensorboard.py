"""Runs of TensorBoard as sessions: from folders that torch's SummaryWriter, tensorboardX and Keras wrote."""

import os
import shutil
import struct
from pathlib import Path

import pytest

from nsml.imports.folders import Folder
from nsml.imports.tensorboard import find
from tests.support.past_runs import read_all, read_one, run_alone
from tests.support.torch_environment import REPORTERS, require_torch

WRITERS = {
    "torch": "from torch.utils.tensorboard import SummaryWriter",
    "tensorboardX": "from tensorboardX import SummaryWriter",
}
PROGRAM = """
import json, numpy
numpy.random.seed(1)
NAME = "run_name" if SummaryWriter.__module__.startswith("torch.") else "name"
for number in range(2):
    writer = SummaryWriter(f"runs/lr-{number}")
    for step in range(50):
        writer.add_scalar("train/loss", 1 / (step + 1), step, walltime=1.7e9 + step)
        writer.add_scalar("accuracy", step / 50, step, walltime=1.7e9 + step)
        writer.add_scalar("lr", 0.1, step, walltime=1.7e9 + step)
    writer.add_scalar("odd", float("nan"), -1, walltime=1.7e9)
    writer.add_scalar("odd", float("inf"), 2**40, walltime=1.7e9 + 60)
    writer.add_image("shown/image", numpy.random.rand(3, 8, 6), 3, walltime=1.7e9 + 3)
    writer.add_histogram("weights", numpy.random.randn(1000), 7)
    writer.add_text("notes", "well\\nwell", 1)
    writer.add_pr_curve("curve", numpy.random.randint(2, size=100), numpy.random.rand(100), 1)
    writer.add_scalars("losses", {"train": 0.5, "test": 0.25}, 4)
    writer.add_hparams({"lr": 0.1 * (number + 1), "layers": 3, "name": "a", "deep": True},
                       {"accuracy": 0.98, "score": 0.75}, **{NAME: "tuned"})
    writer.close()
"""


def as_float(number):
    """The number as TensorBoard keeps it."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders that both libraries wrote, by library."""
    python = require_torch()
    made = {}
    for name, start in WRITERS.items():
        folder = tmp_path_factory.mktemp(name)
        run_alone(folder, f"{start}\n{PROGRAM}", REPORTERS, python=python)
        made[name] = folder / "runs"
    return made


@pytest.mark.parametrize("writer", WRITERS)
def test_a_run_has_what_the_program_logged(folders, writer, tmp_path):
    found = read_all(folders[writer], find, tmp_path)
    assert [*found] == ["lr-0", "lr-1"]
    one = found["lr-1"]
    series = one.series()
    assert series["train/loss"] == [(step, as_float(1 / (step + 1))) for step in range(50)]
    assert series["accuracy"] == [(step, as_float(step / 50)) for step in range(50)]
    assert series["lr"] == [(step, as_float(0.1)) for step in range(50)]
    assert series["odd"] == [(-1, "NaN"), (2**40, "Infinity")]
    losses = {name: points for name, points in series.items() if "test" in name}
    assert [*losses.values()] == [[(4, 0.25)]]
    assert series["score"] == [(49, 0.75)]
    assert {name.split("/")[0] for name in series} <= {
        *("train", "accuracy", "lr", "odd", "losses", "losses_train", "losses_test", "score")
    }
    # Three numbers of a step are one record.
    assert len([one for one in one.records if one["step"] == 10]) == 1
    assert one.records[0]["time"] == 1.7e9
    assert one.config == {"lr": 0.2, "layers": 3, "name": "a", "deep": True}
    kinds = {media["name"]: media["kind"] for media in one.media}
    assert kinds["shown/image"] == "image"
    assert sorted(kinds.values()) == ["histogram", "image", "table", "text"]
    [image] = [media for media in one.media if media["kind"] == "image"]
    assert (image["facts"], image["step"]) == ({"width": 6, "height": 8}, 3)
    assert image["time"].startswith("2023-11-14T22:13:23")
    assert image["data"].startswith(b"\x89PNG")
    [text] = [media for media in one.media if media["kind"] == "text"]
    assert text["data"] == b"well\nwell"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_session_has_its_times_and_its_last_results(folders, writer, tmp_path):
    one = read_all(folders[writer], find, tmp_path)["lr-0"]
    assert one.session.created_at.seconds == 1_700_000_000
    assert one.session.ended_at.seconds > 1_700_000_060
    assert one.session.name == "tensorboard/digits/lr-0"
    assert one.session.memo == "lr-0"
    assert one.summary == {"train/loss": as_float(0.02), "accuracy": as_float(0.98), "score": 0.75}
    assert (one.left_out, one.is_damaged) == ((), False)


def test_a_folder_that_was_moved_has_the_same_runs(folders, tmp_path):
    shutil.copytree(folders["torch"], tmp_path / "copy/here")
    with Folder(folders["torch"]) as there, Folder(tmp_path / "copy") as here:
        before, after = find(there), find(here)
    assert [one.id for one in before] == [one.id for one in after]
    assert len({one.id for one in before}) == 2
    assert [one.name for one in after] == ["here/lr-0", "here/lr-1"]


def test_one_run_alone_is_named_after_its_folder(folders, tmp_path):
    assert [*read_all(folders["torch"] / "lr-1", find, tmp_path)] == ["lr-1"]


RESTARTED = """
from torch.utils.tensorboard import SummaryWriter
import time
for first, purge in ((0, None), (6, 6), (12, 12)):
    writer = SummaryWriter("logs/a", purge_step=purge)
    for step in range(first, first + 8):
        writer.add_scalar("loss", first + step / 100, step)
    writer.close()
    time.sleep(1.1)
"""


def test_points_from_before_a_restart_are_void(tmp_path):
    run_alone(tmp_path, RESTARTED, REPORTERS, python=require_torch())
    one = read_all(tmp_path / "logs", find, tmp_path)["a"]
    steps = [step for step, _ in one.series()["loss"]]
    assert steps == list(range(20))
    values = dict(one.series()["loss"])
    assert (values[5], values[6], values[12]) == tuple(map(as_float, (0.05, 6.06, 12.12)))


SPLIT = """
import time
from torch.utils.tensorboard import SummaryWriter
for folder in ("logs/first", "logs/second/deep"):  # as Keras names them
    writers = {name: SummaryWriter(f"{folder}/{name}") for name in ("train", "validation")}
    for epoch in range(3):
        for name, writer in writers.items():
            writer.add_scalar("epoch_loss", epoch + len(name), epoch, walltime=1.7e9 + epoch)
    for writer in writers.values():
        writer.close()
other = SummaryWriter("logs/first/other")
other.add_scalar("epoch_loss", 1, 1)
other.close()
"""


def test_training_and_validation_are_one_run(tmp_path):
    run_alone(tmp_path, SPLIT, REPORTERS, python=require_torch())
    found = read_all(tmp_path / "logs", find, tmp_path)
    assert [*found] == ["first", "first/other", "second/deep"]
    for name in ("first", "second/deep"):
        one = found[name]
        assert one.series() == {
            "epoch_loss": [(epoch, epoch + 5.0) for epoch in range(3)],
            "validation/epoch_loss": [(epoch, epoch + 10.0) for epoch in range(3)],
        }
        assert len(one.records) == 3
        assert one.summary == {"epoch_loss": 7.0, "validation/epoch_loss": 12.0}


def test_damage_is_named_and_what_is_before_it_is_imported(folders, tmp_path):
    shutil.copytree(folders["torch"], tmp_path / "runs")
    [file] = (tmp_path / "runs/lr-0").glob("*tfevents*")
    data = bytearray(file.read_bytes())
    data[2_000:2_100] = bytes(100)
    file.write_bytes(data)
    shutil.rmtree(tmp_path / "runs/lr-1")
    (tmp_path / "runs/lr-1").mkdir()
    (tmp_path / "runs/lr-1" / file.name).write_bytes(b"no event file at all")
    with Folder(tmp_path / "runs") as folder:
        _, second = find(folder)
        with pytest.raises(ValueError, match="no event file of it can be read"):
            read_one(second, tmp_path)
    found = read_all(tmp_path / "runs/lr-0", find, tmp_path)["lr-0"]
    assert found.is_damaged
    assert 0 < len(found.series()["train/loss"]) < 50
    assert "the length of a record is damaged; nothing after byte" in found.left_out[0]


def test_links_and_pipes_are_not_read(folders, tmp_path):
    outside = tmp_path / "outside"
    shutil.copytree(folders["torch"] / "lr-0", outside)
    place = tmp_path / "runs"
    (place / "a").mkdir(parents=True)
    (place / "link").symlink_to(outside)
    [file] = outside.glob("*tfevents*")
    (place / "a" / file.name).symlink_to(file)
    os.mkfifo(place / "a/events.out.tfevents.1.pipe")
    assert read_all(place, find, tmp_path) == {}


def test_names_with_control_characters_are_shown_escaped(folders, tmp_path):
    name = "a\x1b[2J\nb\udcff"
    shutil.copytree(folders["torch"] / "lr-0", tmp_path / "runs" / name)
    [(found, one)] = read_all(tmp_path / "runs", find, tmp_path).items()
    assert found == "a\\x1b[2J\\x0ab\\xff"
    assert one.session.memo == found
    assert Path(one.run.place).name == found
