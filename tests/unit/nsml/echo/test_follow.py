"""Event files of TensorFlow's own writers, which are followed: to their end, once, and whatever is in them."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.echoes import Echoed, environment_of, records_in, run_echoed
from tests.support.torch_environment import REPORTERS, require_torch
from tests.unit.nsml.echo.test_event_files import FLOAT, event, field, of_plugin, scalar, shape
from tests.unit.nsml.test_sdk_install import every_python

LIMIT_S = 120.0
"""So long at most may a follower take, on a busy machine."""

OPERATIONS = '''
"""Writers as TensorFlow's: a file per writer, found by its name; scalars are tensors of a plugin."""
import itertools, os, socket, struct, time
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

numbers = itertools.count()
writers = {}

class Writer:
    def __init__(self, logdir, suffix):
        os.makedirs(logdir, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(numbers)}{suffix}"
        self.path = os.path.join(logdir, name)
        self.file = open(self.path, "ab")
        self.write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, event):
        data = event.SerializeToString()
        head = struct.pack("<Q", len(data))
        self.file.write(head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data)))

    def scalar(self, tag, value, step):
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_FLOAT, tensor_shape=tensor_shape_pb2.TensorShapeProto(), tensor_content=struct.pack("<f", value)
        )
        metadata = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="scalars"))
        one = summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
        self.write(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=[one])))

    def flush(self):
        self.file.flush()

def create_summary_file_writer(writer, logdir, max_queue=10, flush_millis=120_000, filename_suffix=".v2", name=None):
    writers[writer] = Writer(logdir, filename_suffix)
'''
BEGIN = """
import os, sys, time
import tensorflow
from tensorflow.python.ops import gen_summary_ops as operations

def writer(logdir):
    operations.create_summary_file_writer(logdir, logdir=logdir)
    return operations.writers[logdir]
"""


def install_library(folder: Path, operations: str = OPERATIONS) -> None:
    """A library named tensorflow, with writers that are not Python's."""
    place = folder / "tensorflow/python/ops"
    place.mkdir(parents=True)
    (folder / "tensorflow/__init__.py").write_text(
        "__version__ = '2.21.0'\nfrom tensorflow.python.ops import gen_summary_ops\n"
    )
    (folder / "tensorflow/python/__init__.py").touch()
    (place / "__init__.py").touch()
    (place / "gen_summary_ops.py").write_text(operations)


REAPER = """
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
code = subprocess.call([sys.executable, "program.py"])
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
sys.exit(code if code >= 0 else 128 - code)
"""
"""Runs a program as a shim does: it ends once the last process has ended. As in a shell, a signal is 128 and its number."""


def run_reaped(folder: Path, program: str, *paths: Path, python: str, **more: str) -> Echoed:
    """Run a program, until its follower has ended, too."""
    (folder / "program.py").write_text(program)
    return run_echoed(folder, REAPER, *paths, python=python, **more)


def run_following(folder: Path, program: str, **more: str) -> Echoed:
    """Run a program with the library."""
    install_library(folder)
    return run_reaped(folder, BEGIN + program, REPORTERS, python=require_torch(), **more)


@contextlib.contextmanager
def running(folder: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """A program with the library, while it or its follower runs."""
    install_library(folder)
    (folder / "program.py").write_text(BEGIN + program)
    (folder / "main.py").write_text(REAPER)
    with subprocess.Popen(
        [require_torch(), "main.py"],
        cwd=folder,
        env=environment_of(folder, REPORTERS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def points(folder: Path) -> list[tuple[str, float, float]]:
    return [
        (name, one["step"], value)
        for one in records_in(folder / "run", "metric")
        for name, value in one["values"].items()
    ]


def test_files_are_followed_while_the_program_runs_and_to_their_end_when_it_is_killed(
    tmp_path: Path,
) -> None:
    program = """
train, validation = writer("logs/train"), writer("logs/validation")
for step in range(5):
    train.scalar("epoch_loss", step * 0.5, step)
    validation.scalar("epoch_loss", step * 0.25, step)
train.flush(); validation.flush()
print("flushed", flush=True)
input()
for step in range(5, 20_000):
    train.scalar("epoch_loss", step * 0.5, step)
train.flush()
os.write(train.file.fileno(), b"half a rec")
os.kill(os.getpid(), 9)
"""
    with running(tmp_path, program) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "flushed\n"
        deadline = time.monotonic() + LIMIT_S
        while len(points(tmp_path)) < 10:
            assert time.monotonic() < deadline, points(tmp_path)
            time.sleep(0.05)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(LIMIT_S) == 128 + signal.SIGKILL
    found = points(tmp_path)
    of_train = [one[1:] for one in found if one[0] == "epoch_loss"]
    assert of_train == [(step, step * 0.5) for step in range(20_000)]
    assert [one for one in found if one[0] != "epoch_loss"] == [
        ("validation/epoch_loss", step, step * 0.25) for step in range(5)
    ]
    assert {one["origin"] for one in records_in(tmp_path / "run", "metric")} == {"tensorboard"}


PLAIN_OPERATIONS = """
import os, time

def create_summary_file_writer(writer, logdir, max_queue=10, flush_millis=120_000, filename_suffix=".v2", name=None):
    os.makedirs(logdir)
    name = "events.out.tfevents.%010d.host.%d.0%s" % (time.time(), os.getpid(), filename_suffix)
    with open("events", "rb") as source, open(os.path.join(os.fsdecode(logdir), name), "wb") as file:
        file.write(source.read())
"""


@pytest.mark.parametrize("python", every_python())
def test_each_python_follows(tmp_path: Path, python: str) -> None:
    install_library(tmp_path, PLAIN_OPERATIONS)
    tensors = [FLOAT + shape() + field(4, struct.pack("<f", number)) for number in range(500)]
    values = [of_plugin(b"loss", b"scalars", tensor) for tensor in tensors]
    events = b"".join(event(one, step=step) for step, one in enumerate(values))
    (tmp_path / "events").write_bytes(events + event(*(scalar(b"old", 1.0), scalar(b"b", 2.0))))
    program = """
import tensorflow
from tensorflow.python.ops import gen_summary_ops as operations
operations.create_summary_file_writer(None, logdir=b"logs")
"""
    done = run_reaped(tmp_path, program, python=python)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.series("loss") == [(step, float(step)) for step in range(500)]
    assert (done.series("old"), done.series("b")) == ([(1, 1.0)], [(1, 2.0)])


def test_files_of_others_are_not_read(tmp_path: Path) -> None:
    program = """
import shutil
one = writer("logs")
one.scalar("mine", 1.0, 1)
one.flush()
size = os.path.getsize(one.path)
name = os.path.basename(one.path)
pid = f".{os.getpid()}."
shutil.copy(one.path, "logs/" + name.replace(pid, ".1."))
shutil.copy(one.path, "logs/events.out.tfevents.1000000000.host" + pid + "7.v2")
os.symlink(one.path, one.path.replace(".0.v2", ".8.v2"))
os.mkfifo(one.path.replace(".0.v2", ".9.v2"))
os.mkdir(one.path.replace(".0.v2", ".10.v2"))
for number in range(200):
    open(f"logs/{number}.txt", "w").close()
two = writer("logs")
two.scalar("mine", 2.0, 2)
two.flush()
os.truncate(two.path, 0)  # and written anew in the same file
time.sleep(0.5)
third = operations.Writer.__new__(operations.Writer)
third.file = open(two.path, "wb")
third.scalar("mine", 3.0, 3)
third.flush()
"""
    done = run_following(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    found = done.points()
    assert found[0] == ("mine", 1, 1.0)
    assert found[-1] == ("mine", 3, 3.0)
    assert found[1:-1] in ([], [("mine", 2, 2.0)])


def test_a_file_with_a_hook_counts_once(tmp_path: Path) -> None:
    program = """
import types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # TensorBoard is not to use this TensorFlow
from torch.utils.tensorboard import SummaryWriter
before = SummaryWriter("logs")
before.add_scalar("before", 0.5, 1)
one = writer("logs")
after = SummaryWriter("logs")
for step in range(50):
    one.scalar("followed", step, step)
    before.add_scalar("hooked", step, step)
    after.add_scalar("hooked", step, step)
one.flush()
before.close()
after.close()
"""
    done = run_following(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.series("before") == [(1, 0.5)]
    assert len(done.series("hooked")) == 100
    assert done.series("followed") == [(step, float(step)) for step in range(50)]


def test_hostile_files_disturb_nothing(tmp_path: Path) -> None:
    program = """
import struct
good = writer("logs/good")
for number, data in enumerate((
    bytes(100), struct.pack("<Q", 2**63) * 50, os.urandom(1000), b"\\xff" * 100_000,
)):
    one = writer(f"logs/{number}")
    one.scalar("before", number, number)
    one.file.write(data)
    one.flush()
sparse = writer("logs/sparse")
sparse.flush()
os.truncate(sparse.path, 1 << 40)
for tag in ("\\x1b[31m", "/../x", "t" * 1_000_000, ""):
    good.scalar(tag, 1.0, 1)
good.scalar("last", float("inf"), 2**63 - 1)
good.flush()
"""
    done = run_following(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.series("\\x1b[31m") == [(1, 1.0)]
    assert done.series("/../x") == [(1, 1.0)]
    assert done.series("last") == [(2**63 - 1, "Infinity")]
    assert done.series("0/before") == [(0, 0.0)]
    assert done.series("3/before") == [(3, 3.0)]


def test_the_follower_is_no_child_and_holds_no_stream_of_the_program(tmp_path: Path) -> None:
    program = """
import glob, threading

def begun():  # the part of the follower that starts it is a child, and ends at once
    deadline = time.monotonic() + 100
    while threading.active_count() > 1 or not glob.glob(os.environ["NSML_RUN_DIR"] + "/echo/following/*"):
        assert time.monotonic() < deadline
        time.sleep(0.05)

one = writer("logs")
begun()
try:
    os.wait()
except ChildProcessError:
    print("no children")
if os.fork() == 0:
    other = writer("logs")  # a child has a follower of its own
    other.scalar("of_child", 1.0, 1)
    other.flush()
    begun()
    os._exit(0)
os.wait()
one.scalar("loss", 1.0, 1)
one.flush()
if os.fork() == 0:
    os.setsid()
    while glob.glob(os.environ["NSML_RUN_DIR"] + "/echo/following/*"):
        time.sleep(0.05)  # the follower ends before this child, which would hold the pipe
    os._exit(0)
print("ended", flush=True)
os._exit(0)
"""
    done = run_following(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no children\nended\n", "")
    assert sorted(done.points()) == [("loss", 1, 1.0), ("of_child", 1, 1.0)]


def test_what_the_program_reports_itself_is_not_recorded_twice(tmp_path: Path) -> None:
    program = """
import nsml
nsml.report(before=0.5, step=1)
one = writer("logs")
nsml.report(later=0.5, step=1)
for name in ("before", "later", "other"):
    one.scalar(name, 1.0, 2)
one.flush()
"""
    done = run_following(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.points() == [("before", 1, 0.5), ("later", 1, 0.5), ("other", 2, 1.0)]


def test_without_a_writer_there_is_no_follower(tmp_path: Path) -> None:
    program = """
import subprocess, threading
assert "nsml._echo._follow" not in sys.modules
assert "subprocess" not in sys.modules or threading.active_count() == 1
assert not os.path.exists(os.environ["NSML_RUN_DIR"] + "/echo/following")
"""
    done = run_following(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_followed_where_it_is_switched_off(tmp_path: Path) -> None:
    program = """
one = writer("logs")
one.scalar("loss", 1.0, 1)
one.flush()
assert not any(name.startswith("nsml") for name in sys.modules)
"""
    done = run_following(tmp_path, program, NSML_ECHO="none")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.records("metric") == []


@pytest.mark.long("it imports TensorFlow, which takes up to a minute on a busy machine")
def test_tensorflow_itself_is_followed(tmp_path: Path) -> None:
    python = os.environ.get("NSML_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip(
            "NSML_TENSORFLOW_PYTHON names no interpreter that has tensorflow and tensorboard"
        )
    program = """
import tensorflow as tf
for folder, times in (("logs/train", 1.0), ("logs/validation", 2.0)):
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        for step in range(2000):
            tf.summary.scalar("epoch_loss", step * times, step=step)
        tf.summary.image("image", tf.zeros([1, 4, 4, 3]), step=1)
        tf.summary.histogram("weights", tf.random.normal([100]), step=1)
        tf.summary.text("note", "hello", step=1)
    writer.flush()
import os
os.kill(os.getpid(), 9)
"""
    done = run_reaped(tmp_path, program, python=python, NSML_ECHO="tensorboard")
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "nsml: " not in done.stderr
    assert done.series("epoch_loss") == [(step, float(step)) for step in range(2000)]
    assert done.series("validation/epoch_loss") == [(step, step * 2.0) for step in range(2000)]
    assert sorted((one["name"], one["type"]) for one in done.records("media")) == [
        ("image", "image"),
        ("note", "text"),
        ("validation/image", "image"),
        ("validation/note", "text"),
        ("validation/weights", "histogram"),
        ("weights", "histogram"),
    ]
