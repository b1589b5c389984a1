"""events, eventlen: which values, of whom, as they come."""

import csv
import io
import itertools
import json
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.app import App
from cli.main import run
from cli.results.metric_options import Downsample, Event
from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.conftest import Stream


@pytest.fixture
def gang(state):
    """Two replicas; the second attempt repeats a step, and one rank of it has not come so far."""
    session = state.add("kim/mnist/1")
    for attempt, steps in ((1, (0, 1)), (2, (1, 2))):
        for step in steps:
            for rank in (0, 1):
                if (step, rank) != (2, 1):
                    value = 10.0 * attempt + step + rank
                    state.report(session, "loss", value, step=step, rank=rank, attempt=attempt)
    state.report(session, "note", json='"x"', rank=1)
    return session


def values(result):
    return [(row["value"], row.get("rank")) for row in csv.DictReader(io.StringIO(result.stdout))]


@pytest.mark.parametrize("value", [str(10**400), f"[{10**400}]", "9" * 5000, "[" * 5000, "junk"])
def test_what_no_float_is_and_no_json_is_shown_as_it_was_reported(nsml, state, value):
    """Control planes and programs of other versions may tell of such."""
    state.report(state.add("kim/mnist/1"), "value", json=value, step=1)
    for words in (["events"], ["events", "-o", "wide"], ["plot"], ["export", "--format", "jsonl"]):
        for terminal in (False, True):
            result = nsml(*words, "kim/mnist/1", terminal=terminal, check=False)
            assert "defect" not in result.stderr
    [item] = json.loads(nsml("events", "-j", "kim/mnist/1").stdout)["items"]
    told = value if value in {"9" * 5000, "[" * 5000, "junk"} else json.loads(value)
    assert item["value"] == told
    if value == str(10**400):
        assert "1e+400" in nsml("events", "kim/mnist/1", terminal=True).stdout


def test_of_one_replica_or_attempt(nsml, gang):
    shown = values(nsml("events", "@last", "loss", "--rank", "1", "-o", "csv"))
    assert shown == [("11.0", "1"), ("22.0", "1")]
    shown = values(nsml("events", "@last", "loss", "--attempt", "2", "--rank", "0", "-o", "csv"))
    assert shown == [("21.0", "0"), ("22.0", "0")]
    for name in ("events", "eventlen"):
        refused = nsml(name, "@last", "--rank", "7", check=False)
        assert refused.code == 5
        assert "kim/mnist/1 has no replica 7" in refused.stderr
    gang.spec.replica_count = 8
    for name in ("events", "eventlen"):
        assert nsml(name, "@last", "--rank", "7").stderr == "nothing reported by rank 7\n"
    drawn = nsml("plot", "@last", "-m", "loss", "--rank", "1", "--attempt", "1", "--table").stdout
    assert drawn.startswith("loss of kim/mnist/1 rose 11 -> 12 over 2 points")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("mean", [10.5, 21.5, 22.0]),
        ("min", [10.0, 21.0, 22.0]),
        ("max", [11.0, 22.0, 22.0]),
        ("sum", [21.0, 43.0, 22.0]),
    ],
)
def test_reduced_over_replicas(nsml, gang, how, expected):
    items = json.loads(nsml("events", "@last", "--reduce", how, "-j").stdout)["items"]
    assert [item["value"] for item in items] == expected
    assert [item["ranks"] for item in items] == [2, 2, 1]
    assert "rank" not in items[0]
    last = nsml(
        "events", "@last", "--reduce", how, "--limit", "1", "-o", "csv", "--fields", "value"
    )
    assert last.stdout == "value\n22.0\n"
    items = json.loads(nsml("events", "@last", "--reduce", how, "--attempts", "-j").stdout)["items"]
    assert [item["ranks"] for item in items] == [2, 2, 2, 1]
    drawn = nsml("plot", "@last", "--reduce", how, "--attempt", "1", "--table").stdout
    assert f"rose {items[0]['value']:g} -> {items[1]['value']:g} over 2 points" in drawn


@pytest.fixture
def resumed(state):
    """Its second attempt goes on from step 2, with less loss; it reports its learning rate once."""
    session = state.add("kim/mnist/1")
    state.report(session, "lr", 0.1, attempt=1)
    for attempt, steps in ((1, range(5)), (2, range(2, 4))):
        for step in steps:
            loss = (5.0 if attempt == 1 else 3.0) - step / 10
            state.report(session, "loss", loss, step=step, attempt=attempt)
    state.report(session, "lr", 0.2, attempt=2)
    state.report(session, "said", json='"x"', step=4, attempt=1)
    state.report(session, "said", json='"y"', step=3, attempt=2)
    return session


CLEAN = ["5.0", "4.9", "2.8", "2.7"]
ALL = ["5.0", "4.9", "4.8", "4.7", "4.6", "2.8", "2.7"]


@pytest.mark.parametrize(
    "command",
    [
        ("events", "@last", "loss", "-o", "csv"),
        ("events", "@last", "loss", "-o", "jsonl"),
        ("events", "@last", "loss", "--limit", "100", "-o", "csv"),
        ("plot", "@last", "-m", "loss", "--csv"),
        ("export", "@last", "-m", "loss"),
        ("export", "@last", "-m", "loss", "--format", "jsonl"),
    ],
)
def test_each_step_has_the_value_of_the_last_attempt(nsml, resumed, command):
    def shown(*flags):
        text = nsml(*command, *flags).stdout
        lines = map(json.loads, text.splitlines()) if text.startswith("{") else None
        return [str(row["value"]) for row in lines or csv.DictReader(io.StringIO(text))]

    assert shown() == CLEAN
    assert shown("--attempts") == ALL


def test_what_holds_no_number_is_superseded_too(nsml, resumed):
    assert "y" in nsml("events", "@last", "said").stdout
    assert [v for v, _ in values(nsml("events", "@last", "said", "-o", "csv"))] == ["y"]


def test_points_without_a_step_all_count(nsml, resumed):
    assert [v for v, _ in values(nsml("events", "@last", "lr", "-o", "csv"))] == ["0.1", "0.2"]


def test_a_chart_is_one_line_that_ends_where_the_last_attempt_does(nsml, resumed):
    drawn = nsml("plot", "@last", "-m", "loss", "--table").stdout
    assert drawn.startswith("loss of kim/mnist/1 fell 5 -> 2.7 over 4 points")
    apart = nsml("plot", "@last", "-m", "loss", "--table", "--attempts").stdout
    assert "loss of kim/mnist/1 attempt 1 fell 5 -> 4.6 over 5 points" in apart
    assert "loss of kim/mnist/1 attempt 2 fell 2.8 -> 2.7 over 2 points" in apart


def test_one_attempt_or_all_of_them(nsml, resumed):
    shown = values(nsml("events", "@last", "loss", "--attempt", "1", "-o", "csv"))
    assert [v for v, _ in shown] == ALL[:5], "as it was reported"
    for name in ("events", "plot"):
        refused = nsml(name, "@last", "--attempt", "1", "--attempts", check=False)
        assert refused.code == 2
        assert "not both" in refused.stderr


def test_what_holds_no_number_is_none_when_reduced(nsml, state):
    session = state.add("kim/mnist/1")
    for rank, value in enumerate((1.0, math.nan)):
        state.report(session, "loss", value, step=1, rank=rank)
    for how in ("mean", "min", "max", "sum"):
        shown = nsml("events", "@last", "--reduce", how, "-o", "csv", "--fields", "value").stdout
        assert shown == "value\nnan\n"


def test_the_mean_of_the_greatest_numbers_is_finite(nsml, state):
    session = state.add("kim/mnist/1")
    for rank in range(4):
        state.report(session, "loss", 1.7e308, step=1, rank=rank)
    shown = nsml("events", "@last", "--reduce", "mean", "-o", "csv", "--fields", "value").stdout
    assert float(shown.split()[1]) == pytest.approx(1.7e308)


@pytest.mark.parametrize(
    ("missing", "words"),
    [([1], "1 report of kim/mnist/1 is"), ([1, 2], "3 reports of kim/mnist/1 are")],
)
def test_what_is_missing_is_told_once(nsml, state, missing, words, tmp_path):
    session = state.add("kim/mnist/1")
    for step in range(12):
        state.report(session, "loss", 1.0, step=step)
    line = f"({words} missing; its log says why where the program knew: nsml logs kim/mnist/1)"
    for command in (
        ("events", "@last"),
        ("events", "@last", "-o", "csv"),
        ("export", "@last"),
        ("plot", "@last", "--reduce", "mean"),
        ("plot", "@last", "--tensorboard", str(tmp_path)),
        ("diff", "kim/mnist/1", "kim/mnist/2", "--metrics"),
    ):
        if command[0] == "diff":
            state.add("kim/mnist/2")
        state.missing = list(missing)
        told = [one for one in nsml(*command).stderr.splitlines() if " missing; " in one]
        assert told == [line], command


def test_who_reads_points_that_were_let_go_is_told_once(nsml, state, tmp_path):
    session = state.add("kim/mnist/1")
    state.report(session, "loss", 1.0, step=1)
    state.add("kim/mnist/2")
    state.let_go.FromJsonString("2026-03-04T05:06:07Z")
    start = "(points of kim/mnist/1 were removed on 2026-03-04 "
    for command in (
        ("events", "kim/mnist/1"),
        ("events", "kim/mnist/1", "-o", "csv"),
        ("eventlen", "kim/mnist/1"),
        ("eventlen", "kim/mnist/1", "--per-rank"),
        ("export", "kim/mnist/1"),
        ("plot", "kim/mnist/1", "--csv"),
        ("plot", "kim/mnist/1", "--chart"),
        ("plot", "kim/mnist/1", "--reduce", "mean"),
        ("plot", "kim/mnist/1", "--tensorboard", str(tmp_path)),
        ("diff", "kim/mnist/1", "kim/mnist/2", "--metrics"),
    ):
        told = [one for one in nsml(*command).stderr.splitlines() if one.startswith(start)]
        assert len(told) == 1, command
    found = nsml("export", "kim/mnist/1", "-o", str(tmp_path / "x.csv"), "-j").stdout
    assert json.loads(found)["items"][0]["let_go_at"] == "2026-03-04T05:06:07.000Z"
    shown = nsml("events", "kim/mnist/1", "--attempt", "1", "--rank", "0", "--since-step", "5")
    assert "no points are left" in shown.stderr
    assert nsml("events", "kim/mnist/1", "nope", check=False).code == 5


def test_counted_apart(nsml, gang):
    assert nsml("eventlen", "@last", "--per-rank", "-o", "csv").stdout == (
        "name,count,attempt,rank\nloss,2,1,0\nloss,2,1,1\nloss,2,2,0\nloss,1,2,1\nnote,1,1,1\n"
    )
    shown = nsml("eventlen", "@last", "--rank", "0", "--attempt", "1").stdout
    assert shown.splitlines()[-1].split() == ["loss", "2", "1", "0"]
    assert nsml("eventlen", "@last", "-o", "csv").stdout == "name,count,origin\nloss,7,\nnote,1,\n"


@pytest.mark.parametrize("output", ["csv", "jsonl", "table"])
def test_followed_to_the_end_with_one_header(environ, state, output):
    session = state.add("kim/mnist/1")
    state.report(session, "loss", 0.0, step=0)

    def train():
        state.breaks_off = 1
        for step in range(1, 9):
            state.report(session, "loss", float(step), step=step)
        state.change(session, state=pb.SESSION_STATE_SUCCEEDED)

    app = App(
        environ=environ, stdout=Stream(), stderr=Stream(), stdin=Stream(), given_clock=SystemClock()
    )
    training = threading.Timer(0.2, train)
    training.start()
    assert run(["events", "@last", "-f", "-o", output, "--fields", "value"], app) == 0
    training.join()
    lines = app.stdout.raw_bytes.decode().splitlines()
    if output == "jsonl":
        assert [json.loads(line)["value"] for line in lines] == list(range(9))
    else:
        head = 2 if output == "table" else 1
        assert [float(line) for line in lines[head:]] == list(range(9))


def test_followed_no_other_way(nsml, gang):
    for words in (["--limit", "3"], ["--reduce", "sum"], ["-j"], ["-o", "yaml"]):
        result = nsml("events", "@last", "-f", *words, check=False)
        assert (result.code, result.stdout) == (2, "")
    for words in (["--rank", "-1"], ["--attempt", "0"], ["--reduce", "median"]):
        assert nsml("events", "@last", *words, check=False).code == 2


def test_fewer_values_lose_no_spike_and_keep_their_order(nsml, state):
    session = state.add("kim/mnist/1")
    for step in range(500):
        value = {77: 99.0, 400: -99.0, 401: math.nan}.get(step, step / 1000)
        for rank in (0, 1):
            state.report(session, "loss", value, step=step, rank=rank)
    state.report(session, "note", json='"x"', rank=1)
    items = json.loads(nsml("events", "@last", "--downsample", "10", "-j").stdout)["items"]
    for rank in (0, 1):
        own = [(one["step"], one["value"]) for one in items if one["rank"] == rank][:10]
        own = [pair for pair in own if pair[0] is not None]
        assert {(77, 99.0), (400, -99.0)} <= set(own)
        assert own == sorted(own)
        assert 2 <= len(own) <= 10
    assert items[-1]["metric"] == "note"
    few = ("--downsample", "2", "-o", "csv", "--fields", "value")
    assert nsml("events", "@last", "loss", "--rank", "0", *few).stdout == "value\n99.0\n-99.0\n"
    assert (
        nsml("events", "@last", "loss", "--reduce", "sum", *few).stdout == "value\n198.0\n-198.0\n"
    )
    for words in (("--downsample", "1"), ("--downsample", "5", "-f")):
        assert nsml("events", "@last", *words, check=False).code == 2


@given(st.lists(st.floats(), max_size=300), st.integers(2, 20))
def test_what_stays_is_bounded_and_was_reported(values, most):
    fewer = Downsample(most)
    every = [Event("a", pb.MetricPoint(name="m", number=value)) for value in values]
    fewer.add(every)
    kept = fewer.events()
    assert len(kept) <= most
    assert all(any(one is known for known in every) for one in kept)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        left = [one.point.number for one in kept if math.isfinite(one.point.number)]
        assert (min(left), max(left)) == (min(finite), max(finite))


@pytest.mark.parametrize(("count", "most"), [(7, 7), (8, 7), (1000, 10), (1023, 10), (4096, 33)])
def test_what_stays_is_spread_evenly(count, most):
    fewer = Downsample(most)
    fewer.add(Event("a", pb.MetricPoint(name="m", number=n, step=n)) for n in range(count))
    places = [0, *(int(one.point.step) for one in fewer.events()), count - 1]
    assert len(places) - 2 <= most
    if count <= most:
        assert len(places) - 2 == count
    widest = max(after - before for before, after in itertools.pairwise(places))
    assert widest <= 8 * count / most


def test_a_chart_says_what_reported_its_metric(nsml, state):
    first, second = state.add("kim/mnist/1"), state.add("kim/mnist/2")
    for name, *origins in (
        ("acc", "log", "wandb"),
        ("loss", "log", "log"),
        ("mixed/loss", "wandb", ""),
        ("own/loss", "", ""),
    ):
        for session, origin in zip((first, second), origins, strict=True):
            for step in range(2):
                state.report(session, name, 0.5 + step, step=step, origin=origin)

    def heads(*words):
        lines = nsml("plot", *words).stdout.splitlines()
        return {line.split()[0]: line.partition("points")[2] for line in lines if "(step)" in line}

    assert heads("2", "--chart") == {
        "loss": "  from the log",
        "acc": "  from wandb",
        "mixed/loss": "",
        "own/loss": "",
    }
    both = heads("1", "2", "--chart")
    assert (both["acc"], both["loss"]) == ("  from log, wandb", "  from the log")
    assert (both["mixed/loss"], both["own/loss"]) == ("", "")
    narrow = nsml("plot", "1", "--chart", "--width", "30", "-m", "loss").stdout.splitlines()
    assert narrow[0] == "loss  (step)  2 points"
    told = nsml("plot", "1", "--table", "-m", "loss").stdout
    assert told.startswith("loss (from the log) of kim/mnist/1 rose 0.5 -> 1.5")


def test_each_value_says_its_origin(nsml, state):
    session = state.add("kim/mnist/1")
    for name, origin in (("loss", "wandb"), ("own", ""), ("acc", "log")):
        state.report(session, name, 0.5, step=1, origin=origin)
    shown = nsml("events", "1").stdout
    assert [line.split()[-1] for line in shown.splitlines()] == [
        "Origin",
        "------",
        "wandb",
        "-",
        "log",
    ]
    rows = [json.loads(line) for line in nsml("events", "1", "-o", "jsonl").stdout.splitlines()]
    assert [row["origin"] for row in rows] == ["wandb", None, "log"]
    rows = list(csv.DictReader(io.StringIO(nsml("events", "1", "-o", "csv").stdout)))
    assert [row["origin"] for row in rows] == ["wandb", "", "log"]
    assert "Origin" not in nsml("events", "1", "own").stdout
    counted = [line.split() for line in nsml("eventlen", "1").stdout.splitlines()]
    assert counted[0] == ["Metric", "Count", "Origin"]
    assert counted[2:] == [["acc", "1", "log"], ["loss", "1", "wandb"], ["own", "1", "-"]]
    items = json.loads(nsml("eventlen", "1", "-j").stdout)["items"]
    assert [item["origin"] for item in items] == ["log", "wandb", None]
    for form in ("csv", "jsonl"):
        text = nsml("export", "1", "--format", form).stdout
        found = (
            [json.loads(line) for line in text.splitlines()]
            if form == "jsonl"
            else list(csv.DictReader(io.StringIO(text)))
        )
        assert [row["origin"] or "" for row in found] == ["wandb", "", "log"]
