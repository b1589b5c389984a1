"""Reports to TensorBoard, by torch's SummaryWriter and by tensorboardX: recorded at once, and as the event files have them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.echoes import Echoed, environment_of, records_in, run_echoed
from tests.support.torch_environment import REPORTERS, require_torch

WRITERS = {
    "torch": "from torch.utils.tensorboard import SummaryWriter",
    "tensorboardX": "from tensorboardX import SummaryWriter",
    "tensorboard": """
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

def event(tag, value, step, **more):
    one = summary_pb2.Summary.Value(tag=tag, simple_value=value)
    return event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[one]), **more)

class SummaryWriter(EventFileWriter):  # loads in a second
    def add_scalar(self, tag, value, step, walltime=1.7e9):
        self.add_event(event(tag, value, step, wall_time=walltime))
""",
}
CLIENTS = ("torch", "tensorboardX")
READ = """
import glob, json, os
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

def read(root):
    found = {}
    for folder, _, names in os.walk(root):
        if any("tfevents" in name for name in names):
            one = EventAccumulator(folder, size_guidance={kind: 0 for kind in ("scalars", "images", "audio", "histograms", "tensors")})
            one.Reload()
            tags = one.Tags()
            found[os.path.relpath(folder, root)] = {
                "scalars": {tag: [[e.step, e.value, e.wall_time] for e in one.Scalars(tag)] for tag in tags["scalars"]},
                "images": {tag: [[e.step, len(e.encoded_image_string)] for e in one.Images(tag)] for tag in tags["images"]},
                "audio": {tag: [[e.step, len(e.encoded_audio_string)] for e in one.Audio(tag)] for tag in tags["audio"]},
                "histograms": {tag: [[e.step, e.histogram_value.num] for e in one.Histograms(tag)] for tag in tags["histograms"]},
                "tensors": {tag: [e.step for e in one.Tensors(tag)] for tag in tags["tensors"]},
            }
    print(json.dumps(found))
"""


def run_reporting(folder: Path, program: str, writer: str = "torch", **more: str) -> Echoed:
    """Run a program with a SummaryWriter where torch and its reporters are."""
    text = f"{WRITERS[writer]}\n{READ}\n{program}"
    return run_echoed(folder, text, REPORTERS, python=require_torch(), **more)


def recorded_scalars(done: Echoed) -> dict[str, list[list[float]]]:
    """Steps, values and times of each metric, in order."""
    found: dict[str, list[list[float]]] = {}
    for one in done.records("metric"):
        for name, value in one["values"].items():
            found.setdefault(name, []).append([one["step"], value, one["time"]])
    return found


def in_files(done: Echoed) -> dict[str, Any]:
    """What TensorBoard itself finds in the program's files: the last line of its output."""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


ALL_KINDS = """
import numpy
numpy.random.seed(1)
NAME = "run_name" if SummaryWriter.__module__.startswith("torch.") else "name"
writer = SummaryWriter("logs/first")
for step in range(200):
    writer.add_scalar("train/loss", 1 / (step + 1), step)
    writer.add_scalar("loss", step * 1.1, step, walltime=1.7e9 + step)
    if step % 50 == 0:
        writer.add_image("shown/image", numpy.random.rand(3, 8, 6), step)
        writer.add_images("shown/images", numpy.random.rand(4, 3, 8, 6), step)
        writer.add_histogram("weights", numpy.random.randn(1000), step)
        writer.add_text("notes", f"step {step}", step)
        if SummaryWriter.__module__.startswith("torch."):  # the other needs a further library for it
            writer.add_audio("sound", numpy.random.rand(1, 800) * 2 - 1, step, sample_rate=8000)
        writer.add_pr_curve("curve", numpy.random.randint(2, size=100), numpy.random.rand(100), step)
        writer.add_scalars("losses", {"train": 0.5 * step, "test": 0.25 * step}, step)
for step in (-1, 2**63 - 1, 3, 1, float("nan")):
    writer.add_scalar("odd", float("nan") if step == 3 else 7.0, 0 if step != step else step)
writer.add_hparams({"lr": 0.1, "layers": 3, "name": "a", "deep": True}, {"score": 0.75}, **{NAME: "tuned"})
writer.add_mesh("mesh", numpy.random.rand(1, 4, 3))
writer.close()
other = SummaryWriter("logs/second/validation")
other.add_scalar("loss", 0.5, 1)
other.close()
# Its file is named by the second: without a name of its own tensorboardX may write over the first.
again = SummaryWriter("logs/first", filename_suffix=".again")
again.add_scalar("loss", 0.5, 200)
again.close()
read("logs")
"""


@pytest.mark.parametrize("writer", CLIENTS)
def test_all_that_is_reported_is_recorded_as_in_the_event_files(
    tmp_path: Path, writer: str
) -> None:
    done = run_reporting(tmp_path, ALL_KINDS, writer)
    assert done.returncode == 0, done.stderr
    assert "nsml:" not in done.stderr
    files = in_files(done)
    assert {*files} > {"first", "second/validation", "first/tuned"}
    scalars = recorded_scalars(done)
    expected = {}
    for folder, kinds in files.items():
        prefix = "" if folder == "first" else folder.removeprefix("first/") + "/"
        if folder != "first/tuned":  # a last value of a metric: no curve
            expected |= {prefix + tag: points for tag, points in kinds["scalars"].items()}
    assert scalars.keys() == expected.keys()
    for name, points in expected.items():
        assert json.dumps(scalars[name]).replace('"NaN"', "NaN") == json.dumps(points), name
    media: dict[str, dict[str, list[list[int]]]] = {}
    for one in done.records("media"):
        of_type = media.setdefault(one["type"], {})
        of_type.setdefault(one["name"], []).append([one["step"], one["size"]])
    assert media["image"] == files["first"]["images"]
    assert media.get("audio", {}) == files["first"]["audio"]
    counts: dict[str, list[list[float]]] = {}
    for one in done.records("media"):
        if one["type"] == "histogram":
            counts.setdefault(one["name"], []).append([one["step"], one["facts"]["count"]])
    assert counts == files["first"]["histograms"]
    tensors = files["first"]["tensors"]
    shown = {
        name: [step for step, _ in points]
        for kind in ("text", "table")
        for name, points in media[kind].items()
    }
    assert shown == {tag: steps for tag, steps in tensors.items() if "mesh" not in tag}
    assert done.config() == {"lr": 0.1, "layers": 3, "name": "a", "deep": True}


KILLED = """
import os, sys, time
writer = SummaryWriter("logs", flush_secs=1000)
for step in range(500):
    writer.add_scalar("loss", step * 0.5, step)
    print(step, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "writer", ["torch", pytest.param("tensorboardX", marks=pytest.mark.variant)]
)
def test_nothing_given_to_the_library_is_lost_when_the_program_is_killed(
    tmp_path: Path, writer: str
) -> None:
    python = require_torch()
    (tmp_path / "main.py").write_text(f"{WRITERS[writer]}\n{KILLED}")
    with subprocess.Popen(
        [python, "main.py"],
        cwd=tmp_path,
        env=environment_of(tmp_path, REPORTERS),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "300\n":
                process.send_signal(signal.SIGKILL)
                break
        rest = process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    last = max([300, *map(int, rest.split())])
    points = [one for record in records_in(tmp_path / "run", "metric") for one in [record["step"]]]
    assert points in ([*range(last + 1)], [*range(last + 2)])


def test_processes_agree_on_the_names(tmp_path: Path) -> None:
    program = """
import multiprocessing, os

def report(folder, value):
    writer = SummaryWriter(folder)
    writer.add_scalar("loss", value, 1)
    writer.close()

if __name__ == "__main__":
    report("logs/train", 1.0)
    for start, value in (("fork", 2.0), ("spawn", 3.0)):
        child = multiprocessing.get_context(start).Process(target=report, args=("logs/validation", value))
        child.start()
        child.join()
    report("logs/train/deep", 4.0)
    report("logs", 5.0)
    report("../elsewhere", 6.0)
"""
    done = run_reporting(tmp_path, program, "tensorboard")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.points()) == [
        ("deep/loss", 1, 4.0),
        ("elsewhere/loss", 1, 6.0),
        ("logs/loss", 1, 5.0),
        ("loss", 1, 1.0),
        ("validation/loss", 1, 2.0),
        ("validation/loss", 1, 3.0),
    ]


def test_workers_of_a_data_loader_report_too(tmp_path: Path) -> None:
    program = """
import torch
writer = SummaryWriter("logs")
writer.add_scalar("first", 0.0, 0)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        value = summary_pb2.Summary.Value(tag="loaded", simple_value=index)
        event = event_pb2.Event(step=index, wall_time=1e9, summary=summary_pb2.Summary(value=[value]))
        writer.file_writer.event_writer.add_event(event)
        return index

for epoch in range(2):
    assert len(list(torch.utils.data.DataLoader(Numbers(), num_workers=2))) == 8
print("ended well")
"""
    done = run_reporting(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended well\n", "")
    assert sorted(done.series("loaded")) == sorted(
        (index, float(index)) for index in [*range(8)] * 2
    )


@pytest.mark.parametrize(
    "chosen", [pytest.param("none", marks=pytest.mark.variant), "wandb,mlflow"]
)
def test_nothing_is_recorded_where_it_is_switched_off(tmp_path: Path, chosen: str) -> None:
    program = """
import sys
writer = SummaryWriter("logs")
writer.add_scalar("loss", 1.0, 1)
writer.close()
assert not any(name.startswith("nsml") for name in sys.modules)
"""
    done = run_reporting(tmp_path, program, "tensorboard", NSML_ECHO=chosen)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.records("metric") == []


ODD = """
import importlib
module = importlib.import_module(EventFileWriter.__module__)
writer = SummaryWriter("logs")
for odd in ("text", None, 3, object()):
    try:
        writer.add_event(odd)
    except TypeError:
        pass
    else:
        raise AssertionError("the library took it")
writer.add_event(event_pb2.Event(wall_time=1.0))
writer.add_event(event_pb2.Event(wall_time=1.0, summary=summary_pb2.Summary()))
writer.add_event(event_pb2.Event(graph_def=b"x"))
writer.add_event(event_pb2.Event(step=5, summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value()])))
for image in (b"", b"no image"):
    picture = summary_pb2.Summary.Image(encoded_image_string=image)
    one = summary_pb2.Summary.Value(tag="image", image=picture)
    writer.add_event(event_pb2.Event(step=5, summary=summary_pb2.Summary(value=[one])))
writer.add_scalar("", 1.0, 0)
writer.add_scalar("t" * 100_000, 1.0, 0)
writer.add_scalar("\\x1b[31m/../x", 1.0, 0, float("nan"))
writer.add_scalar("wall", 1.0, 1, 2.0**60)

original = EventFileWriter.add_event
def patched(self, event):
    return original(self, event)
EventFileWriter.add_event = patched
writer.add_scalar("patched", 1.0, 0, -1.0)
importlib.reload(module)
fresh = module.EventFileWriter("logs")
fresh.add_event(event("reloaded", 2, 9))
fresh.close()
writer.close()
try:
    writer.add_scalar("closed", 1.0, 0)
except OSError:
    pass
"""


def test_odd_events_and_patched_writers_change_nothing(tmp_path: Path) -> None:
    before = time.time()
    done = run_reporting(tmp_path, ODD, "tensorboard")
    assert done.returncode == 0, done.stderr
    assert [(name, step) for name, step, _ in done.points()] == [
        ("\\x1b[31m/../x", 0),
        ("wall", 1),
        ("patched", 0),
        ("reloaded", 9),
    ]
    for record in done.records("metric"):
        assert before < record["time"] < time.time()
    [line] = [line for line in done.stderr.splitlines() if line.startswith("nsml: ")]
    assert "image" in line  # that is none


def test_a_broken_hook_is_removed_and_the_files_are_whole(tmp_path: Path) -> None:
    program = """
import nsml._echo._tensorboard as hook
def broken(*_):
    raise RuntimeError("deliberate")
writer = SummaryWriter("logs")
writer.add_scalar("loss", 1.0, 0)
hook._begin = hook.sink = broken
for step in range(3):
    writer.add_scalar("loss", 1.0, 1 + step)
writer.close()
read("logs")
"""
    done = run_reporting(tmp_path, program, "tensorboard")
    assert done.returncode == 0, done.stderr
    assert done.series("loss") == [(0, 1.0)]
    assert [one[0] for one in in_files(done)["."]["scalars"]["loss"]] == [0, 1, 2, 3]
    [line] = done.stderr.splitlines()
    assert line.startswith("nsml: TensorBoard 2")
    assert "deliberate" in line
