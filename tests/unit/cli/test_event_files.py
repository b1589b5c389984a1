"""plot --tensorboard: TensorBoard itself reads what is written, and shows the same numbers."""

import json
import math
import struct
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event

from nsml.tensorboard import tfevents
from tests.e2e.programs import wait_for
from tests.unit.nsml.client.contract_server import EPOCH


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def reported(state):
    """Two sessions; the first has two replicas, and values of every kind."""
    first, second = state.add("kim/mnist/1"), state.add("kim/mnist/2")
    for step in range(50):
        for rank in (0, 1):
            state.report(first, "train/loss", 1 / (step + 1) + rank, step=step, rank=rank)
        state.report(first, "없이", step * 0.1)
    for value in (math.nan, math.inf, 1e300):
        state.report(first, "odd", value, step=2**40)
    state.report(first, "note", json='"x"', step=1)
    state.report(first, "half", 1.0, step=1.5)
    state.report(first, "nowhere", 1.0, step=math.nan)
    state.report(second, "train/loss", 5.0, step=3)
    return first


def scalars(folder):
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {
        tag: [(one.step, one.value, one.wall_time) for one in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_only_one_replica_or_attempt(nsml, state, reported, runs):
    state.report(reported, "train/loss", 7.0, step=60, rank=1, attempt=2)
    result = nsml("plot", "mnist/1", "--tensorboard", str(runs), "--rank", "1", "--attempt", "2")
    place = runs / "kim/mnist/1/attempt-2/rank-1"
    assert result.stdout.splitlines() == [str(place)]
    assert [(step, value) for step, value, _ in scalars(place)["train/loss"]] == [(60, 7.0)]
    assert result.stderr.startswith("1 point · ")


def test_tensorboard_reads_the_same_numbers(nsml, reported, runs):
    result = nsml("plot", "mnist/1", "mnist/2", "--tensorboard", str(runs))
    places = [runs / "kim/mnist/1", runs / "kim/mnist/1/rank-1", runs / "kim/mnist/2"]
    assert result.stdout.splitlines() == list(map(str, places))
    for words in (
        "1 values left out: event files hold numbers alone",
        "1 points left out: their step is no number",
        "1 steps rounded",
        f"155 points · tensorboard --logdir {runs}",
    ):
        assert words in result.stderr
    found, other, second = map(scalars, places)
    loss = [as_float32(1 / (step + 1)) for step in range(50)]
    assert [(step, value) for step, value, _ in found["train/loss"]] == list(enumerate(loss))
    assert [value for _, value, _ in other["train/loss"]] == [
        as_float32(1 / (step + 1) + 1) for step in range(50)
    ]
    assert found["train/loss"][0][2] == EPOCH
    assert [step for step, _, _ in found["없이"]] == list(range(50))
    odd = [value for _, value, _ in found["odd"]]
    assert math.isnan(odd[0])
    assert odd[1:] == [math.inf, math.inf]
    assert found["odd"][0][0] == 2**40
    assert second == {"train/loss": [(3, 5.0, EPOCH)]}


def test_written_again_there_is_nothing_twice(nsml, reported, runs):
    for _ in range(2):
        nsml("plot", "mnist/2", "--tensorboard", str(runs))
    assert len([path for path in runs.rglob("*") if path.is_file()]) == 1
    assert not list(runs.glob(".nsml-*"))
    assert len(scalars(runs / "kim/mnist/2")["train/loss"]) == 1


def test_attempts_are_one_run_or_a_run_each(nsml, state, runs):
    session = state.add("kim/mnist/1")
    for attempt, steps in ((1, (1, 2, 3)), (2, (2, 3))):
        for step in steps:
            state.report(session, "loss", 10.0 * attempt + step, step=step, attempt=attempt)
            state.report(session, "seen", 10.0 * attempt + step, attempt=attempt)
    nsml("plot", "mnist/1", "--tensorboard", str(runs))
    found = scalars(runs / "kim/mnist/1")
    assert [one[:2] for one in found["loss"]] == [(1, 11.0), (2, 22.0), (3, 23.0)]
    # Nothing says which points without a step were repeated.
    assert [step for step, *_ in found["seen"]] == [0, 1, 2, 3, 4]
    assert not (runs / "kim/mnist/1/attempt-2").exists()
    nsml("plot", "mnist/1", "--tensorboard", str(runs / "apart"), "--attempts")
    apart = [scalars(runs / "apart/kim/mnist/1" / one)["loss"] for one in (".", "attempt-2")]
    assert [[step for step, *_ in one] for one in apart] == [[1, 2, 3], [2, 3]]


def test_what_is_refused_leaves_nothing(nsml, reported, runs):
    (runs.parent / "file").write_text("x")
    for words, code in (
        ([str(runs.parent / "file")], 6),
        ([str(runs), "-m", "train/los"], 5),
        ([str(runs), "--smooth", "0.5"], 2),
        ([str(runs), "--width", "50"], 2),
        ([str(runs), "-x", "step"], 2),
        ([str(runs), "-w"], 2),
    ):
        assert nsml("plot", "@last", "--tensorboard", *words, check=False).code == code
    assert not runs.exists()


def test_checksums_are_those_of_the_standard():
    # RFC 3720, B.4.
    assert tfevents.crc32c(bytes(32)) == 0x8A9136AA
    assert tfevents.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert tfevents.crc32c(b"123456789") == 0xE3069283


@given(st.text(max_size=300), st.floats(), st.integers(), st.floats(0, 4e9))
def test_any_number_is_one_event(tag, value, step, wall_time):
    record = tfevents.scalar(tag, value, step=step, wall_time_s=wall_time)
    (length,) = struct.unpack("<Q", record[:8])
    assert len(record) == length + 16
    event = Event.FromString(record[12:-4])
    [found] = event.summary.value
    assert found.tag == tag.encode("utf-8", "replace").decode()
    assert event.wall_time == wall_time
    assert event.step == min(max(step, -(2**63) + 1), 2**63 - 1)
    try:
        assert math.isnan(value) or found.simple_value == as_float32(value)
    except OverflowError:
        assert math.isinf(found.simple_value)


def test_the_server_shows_the_same_numbers(nsml, reported, runs, tmp_path):
    """Its other reader, in Rust, which is the one that a browser is served from."""
    nsml("plot", "mnist/1", "mnist/2", "--tensorboard", str(runs))
    words = ["tensorboard.main", "--logdir", str(runs), "--port", "0", "--load_fast=true"]
    with (tmp_path / "said").open("wb") as said:
        served = subprocess.Popen([sys.executable, "-m", *words], stdout=said, stderr=said)
    try:
        wait_for(lambda: "http://" in (tmp_path / "said").read_text(), what="TensorBoard serves")
        url = "http://" + (tmp_path / "said").read_text().split("http://")[1].split()[0].rstrip("/")

        def shown():
            with urllib.request.urlopen(f"{url}/data/plugin/scalars/tags") as answer:
                return json.load(answer)

        expected = {"kim/mnist/1", "kim/mnist/1/rank-1", "kim/mnist/2"}
        wait_for(lambda: set(shown()) == expected, what="it has read the runs")
        query = urllib.parse.urlencode({"run": "kim/mnist/1/rank-1", "tag": "train/loss"})
        with urllib.request.urlopen(f"{url}/data/plugin/scalars/scalars?{query}") as answer:
            rows = json.load(answer)
    finally:
        served.terminate()
        served.wait()
    assert [(step, value) for _, step, value in rows] == [
        (step, as_float32(1 / (step + 1) + 1)) for step in range(50)
    ]
