"""Sessions in a wide table: what ordinary ones say fits a terminal, and all that is not ordinary is there."""

import re

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.text import width
from nsml.common.units import short_moment
from nsml.v1 import resources_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.view.filter_fields import state_words
from nsml.view.sessions import (
    COLUMNS,
    attempt_line,
    end_text,
    ran_s,
    ran_text,
    record,
    state_text,
    summary_text,
)
from nsml.view.tables import lay_out, pick, render
from nsml.view.times import moment

NOW = 1_795_411_218
USUAL = "Name Args Status Ran for GPUs Summary Nodes Saved Created at Ended at"
RARE = "Models Memo Priority Retries CPUs Memory Attempt Visibility"


def session(number, state, **facts):
    made = pb.Session(
        id=f"s{number:016}",
        name=f"kim/mnist/{number}",
        owner="kim",
        project="kim",
        state=state,
        attempt=1,
        visibility=resources_pb2.VISIBILITY_PRIVATE,
        created_at=Timestamp(seconds=NOW - 9000),
        **facts,
    )
    made.spec.args.extend(["--epochs", "20", "--lr", "0.1"])
    made.spec.priority = pb.PRIORITY_NORMAL
    made.spec.resources.gpu_thousandths = 4000
    return made


def ordinary():
    began, ended = Timestamp(seconds=NOW - 8900), Timestamp(seconds=NOW - 1000)
    replicas = [pb.Replica(node="gpu-12", resources={"cpu_thousandths": 2000, "memory_bytes": 9})]
    run = session(1840, pb.SESSION_STATE_RUNNING, started_at=began, replicas=replicas)
    run.progress.resumable = True
    run.progress.saved_at.CopyFrom(ended)
    run.summary.update({"train/loss": 0.24871, "val/accuracy": 0.9912})
    done = session(1839, pb.SESSION_STATE_SUCCEEDED, started_at=began, ended_at=ended)
    wait = session(1841, pb.SESSION_STATE_QUEUED)
    wait.waiting = "needs 4 GPUs on one node; most free on one node: 2 (node gpu-7)"
    return [wait, run, done]


@pytest.mark.parametrize(
    ("cause", "word"), [("PREEMPTED", "Requeuing"), ("STOP_REQUESTED", "Stopping")]
)
def test_what_is_queued_again_is_not_said_to_stop(cause, word):
    leaving = session(1840, pb.SESSION_STATE_STOPPING)
    leaving.stop.cause = pb.Cause.Value(f"CAUSE_{cause}")
    assert state_text(leaving) == f"◐ {word}"
    [state] = [one for one in COLUMNS if one.key == "state"]
    code = {"Requeuing": "RQU", "Stopping": "STP"}[word]
    assert [state.within(leaving, NOW, room) for room in (12, 5)] == [f"◐ {word}", f"◐ {code}"]
    assert word in state_words(leaving.state), "a filter finds it by that word"


def test_one_that_was_stopped_before_it_ran_says_why():
    [summary] = [one for one in COLUMNS if one.key == "summary"]
    stopped = session(1840, pb.SESSION_STATE_STOPPED)
    stopped.attempt = 0
    stopped.end.cause = pb.CAUSE_STOP_REQUESTED
    why = "stopped by nsml before it ran: it starts after the success of kim/a/1, which failed"
    stopped.end.message = why
    assert summary.cell(stopped, NOW) == why
    assert summary.within(stopped, NOW, 20) == ""
    stopped.attempt = 1
    assert summary.cell(stopped, NOW) == ""


def test_an_attempt_that_a_user_had_requeued_was_not_preempted():
    ended = pb.EndedAttempt(number=1, nodes=["vm"], cause=pb.CAUSE_PREEMPTED)
    ended.placed_at.seconds, ended.ended_at.seconds = NOW, NOW + 13
    ended.reason = "requeued by kim: let the deadline go first"
    assert attempt_line(pb.Session(), ended) == f"attempt 1: vm for 13s; {ended.reason}"
    ended.reason = "gives way to lee/mnist/3 (high)"
    assert attempt_line(pb.Session(), ended) == f"attempt 1: vm for 13s; preempted: {ended.reason}"


def test_an_attempt_says_what_it_held_and_what_is_left_of_its_work():
    one = pb.Session()
    one.spec.priority = pb.PRIORITY_LOW
    ended = pb.EndedAttempt(number=1, nodes=["vm"], cause=pb.CAUSE_NODE_LOST)
    ended.placed_at.seconds, ended.ended_at.seconds = NOW, NOW + 3600
    assert attempt_line(one, ended) == "attempt 1: vm for 1h, low priority; node lost"
    ended.gpu_models["A100"], ended.gpu_models["H100"] = 2000, 500
    held = "attempt 1: vm for 1h, 2 x A100, 0.5 x H100, low priority"
    assert attempt_line(one, ended) == f"{held}; node lost; nothing saved"
    ended.driver_versions.append("550.54.14")
    ended.python_versions.append("3.12.4")
    ran_with = "0.5 x H100, driver 550.54.14, Python 3.12.4, low priority"
    assert ran_with in attempt_line(one, ended)
    del ended.driver_versions[:], ended.python_versions[:]
    ended.durable_until.seconds = NOW + 2880
    saved = f"saved until {short_moment(NOW + 2880, NOW)}"
    assert attempt_line(one, ended) == f"{held}; node lost; {saved}, 12m of work lost"
    ended.durable_until.seconds = NOW + 3580
    ended.cause = pb.CAUSE_PREEMPTED
    assert attempt_line(one, ended).endswith(
        f"; preempted; {saved[:12]}{short_moment(NOW + 3580, NOW)}"
    )
    ended.cause = pb.CAUSE_PROGRAM_FAILED
    ended.ClearField("durable_until")
    assert attempt_line(one, ended).endswith("; program_failed"), (
        "it lost what it did by its own fault"
    )
    one.attempts.append(ended)
    [told] = record(one)["attempts"]
    assert (told["priority"], told["gpu_models"]) == ("low", {"A100": 2.0, "H100": 0.5})
    assert told["durable_until"] is None
    ended.durable_until.seconds = NOW
    del one.attempts[:]
    one.attempts.append(ended)
    assert record(one)["attempts"][0]["durable_until"] == moment(NOW)


def test_the_time_between_attempts_is_not_one_in_which_it_ran():
    one = session(1840, pb.SESSION_STATE_QUEUED)
    one.ClearField("ended_at")
    assert ran_s(one, NOW) is None
    one.started_at.seconds = NOW - 100
    for number, (placed, ended) in enumerate([(100, 80), (50, 45)], start=1):
        attempt = one.attempts.add(number=number, cause=pb.CAUSE_PREEMPTED)
        attempt.placed_at.seconds, attempt.ended_at.seconds = NOW - placed, NOW - ended
    assert ran_s(one, NOW) == 25, "it is queued again"
    one.state = pb.SESSION_STATE_RUNNING
    assert ran_s(one, NOW) == 70
    one.state, one.ended_at.seconds = pb.SESSION_STATE_STOPPED, NOW - 5
    one.ClearField("replicas")
    assert ran_s(one, NOW) == 25, "stopped while it was queued"
    one.replicas.add(node="a")
    assert ran_s(one, NOW) == 65
    assert [ran_text(ran) for ran in (0.0, 0.4, 1.0, 65)] == ["0s", "<1s", "1s", "1m5s"]


def test_gpus_that_are_only_asked_for_are_said_so():
    [gpus] = [one for one in COLUMNS if one.key == "gpus"]
    wait = session(1841, pb.SESSION_STATE_QUEUED, simulated=True)
    assert gpus.cell(wait, NOW) == "4 asked"
    assert [gpus.within(wait, NOW, room) for room in (7, 6, 2, 1)] == ["4 asked", "4?", "4?", ""]
    wait.spec.replica_count = 2
    assert gpus.cell(wait, NOW) == "2x4 asked"
    wait.state = pb.SESSION_STATE_HELD
    assert gpus.cell(wait, NOW) == "2x4 asked"
    wait.state = pb.SESSION_STATE_PREPARING
    assert gpus.cell(wait, NOW) == "2x4 simulated"
    none = session(1842, pb.SESSION_STATE_QUEUED)
    none.spec.resources.gpu_thousandths = 0
    assert gpus.cell(none, NOW) == "0"


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ({"cause": pb.CAUSE_ENVIRONMENT_FAILED, "message": "pip failed"}, "pip failed"),
        ({"cause": pb.CAUSE_OUT_OF_MEMORY, "exit_code": 137}, "out of memory"),
        ({"cause": pb.CAUSE_PROGRAM_FAILED, "exit_code": 3}, "exit 3"),
        ({"cause": pb.CAUSE_PROGRAM_FAILED, "exit_code": 139}, "exit 139 (SIGSEGV)"),
        ({"cause": pb.CAUSE_PROGRAM_FAILED, "exit_code": 255}, "exit 255"),
    ],
)
def test_of_a_bad_end_it_is_told_why_as_well_as_it_is_known(end, told):
    for state in (pb.SESSION_STATE_FAILED, pb.SESSION_STATE_HELD):
        assert end_text(session(1, state, end=end)) == told
    assert end_text(session(1, pb.SESSION_STATE_STOPPED, end=end)) == ""


def lines(items, room):
    chosen = pick(COLUMNS, wide=True, items=items)
    return render(chosen, items, now=NOW, room=room, is_whole=True).lines


def test_ordinary_sessions_fit_a_terminal():
    shown = lines(ordinary(), 120)
    assert max(map(width, shown)) <= 120
    assert " ".join(shown[0].split()) == USUAL
    assert shown[2].rstrip().endswith("-")
    assert "11-23 02:50Z" in shown[2]


def test_lists_of_sessions_say_in_few_cells_what_they_say_in_many():
    failed = session(1, pb.SESSION_STATE_FAILED, simulated=True)
    failed.end.cause, failed.end.exit_code = pb.CAUSE_OUT_OF_MEMORY, 137
    failed.summary.update({"train/loss": 0.24871, "val/accuracy": 0.9912})
    failed.episodes.add(kind=pb.EPISODE_KIND_IDLE, since=Timestamp(seconds=NOW - 720))
    by_key = {one.key: one for one in COLUMNS}

    def said(key, *rooms):
        return [by_key[key].within(failed, NOW, room) for room in rooms]

    assert by_key["state"].cell(failed, NOW) == "✗ Failed (out of memory)"
    assert said("state", 23, 8, 7) == ["✗ Failed", "✗ Failed", "✗ FAI"]
    assert by_key["gpus"].cell(failed, NOW) == "4 simulated (idle 12m)"
    assert said("gpus", 21, 10, 6, 1) == ["4 sim (idle 12m)", "4 sim …", "4 sim", "4"]
    assert said("args", 20, 13, 11, 8) == [
        "--epochs 20 …",
        "--epochs 20 …",
        "--lr 0.1 …",
        "…",
    ]
    assert said("created", 12, 8, 4) == ["2 hours ago", "2h ago", "2h"]
    told = "out of memory; train/loss=0.2487, val/accuracy=0.9912"
    assert by_key["summary"].cell(failed, NOW) == told
    failed.state = pb.SESSION_STATE_RUNNING
    assert said("summary", 20, 5) == ["train/loss=0.2487 …", "…"]


@given(st.integers(40, 240))
def test_no_number_of_a_list_is_cut(room):
    some = ordinary()
    layout = lay_out([one for one in COLUMNS if not one.is_wide], some, now=NOW, room=room)
    assert sum(layout.widths) + 2 * (len(layout.widths) - 1) <= room
    whole = {"2h", "2487", "24871"}
    for one in some:
        for column in COLUMNS:
            whole |= set(re.findall(r"\w+", column.cell(one, NOW)))
    told = [text for one in some for text in layout.row(one, NOW)]
    numbers = [word for text in told for word in re.findall(r"\d\w*", text)]
    assert set(numbers) <= whole


@given(st.integers(20, 240))
def test_a_list_says_how_it_stands_with_each_in_any_width(room):
    layout = lay_out([one for one in COLUMNS if not one.is_wide], ordinary(), now=NOW, room=room)
    assert {"name", "state"} <= {one.key for one in layout.columns}


def test_what_one_of_them_says_is_shown_of_all():
    rare = session(1842, pb.SESSION_STATE_QUEUED, memo="baseline", checkpoint_count=2)
    rare.attempt, rare.visibility = 2, resources_pb2.VISIBILITY_PUBLIC
    rare.spec.priority, rare.spec.retry_count = pb.PRIORITY_HIGH, 3
    rare.spec.resources.cpu_thousandths, rare.spec.resources.memory_bytes = 4000, 8 << 30
    header = lines([*ordinary(), rare], None)[0]
    assert set(RARE.split()) <= set(header.split())
    assert not set(RARE.split()) & set(lines(ordinary(), None)[0].split())


def test_a_summary_is_in_the_order_of_its_report_and_short():
    one = session(1840, pb.SESSION_STATE_RUNNING)
    one.summary.update(
        {"step": 3, "val/acc": 0.99123, "big": 12345678.9, "tiny": 1e-9, "sizes": [1, 2, 3]}
        | {"of": {"a": 1}, "phase": "warm" * 20, "is_last": True}
    )
    one.summary_names.extend(["val/acc", "tiny", "step", "sizes", "of", "big", "phase"])
    text = (
        "val/acc=0.9912, tiny=1e-09, sizes=[3 values], of={1 value}, big=1.235e+07,"
        f" phase={('warm' * 6)[:23]}…, is_last=True"
    )
    assert summary_text(one) == text
    assert list(record(one)["summary"])[:2] == ["val/acc", "tiny"]
    for cells in range(120):
        cut = summary_text(one, cells)
        assert width(cut) <= cells or cut == ""
        numbers = [part.split("=")[1] for part in cut.removesuffix(" …").split(", ") if part]
        assert numbers == [part.split("=")[1] for part in text.split(", ")[: len(numbers)]]
    assert summary_text(one, 20) == "val/acc=0.9912 …"
    assert summary_text(one, 31) == "val/acc=0.9912, tiny=1e-09 …"
    assert summary_text(one, 15) == "val…cc=0.9912 …"
    assert [summary_text(one, cells) for cells in (14, 11, 10)] == [
        "val/acc=0.9912",
        "va…c=0.9912",
        "",
    ]
    one.summary.update({"epoch": 3, "epoch_total": 20, "files_total": 1})
    assert summary_text(one).endswith(", epoch=3/20, files_total=1, is_last=True")
    one.summary.Clear()
    one.summary.update({"is_last": True, "big": 12345678.9, "of": {"a": 1}})
    del one.summary_names[:]
    assert summary_text(one).startswith("big=1.235e+07, is_last=True, of={1 value}")
