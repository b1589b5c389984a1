"""nsml queue, and nsml status --explain with what would be if."""

import json

import click
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from cli.sessions.what_if import WHAT_IF
from nsml.v1 import resources_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.view import queue, tables
from tests.unit.nsml.client.contract_server import EPOCH

NOW = EPOCH + 86_400.0


def waiting(state, number, gpu=1000, **facts):
    name = f"kim/mnist/{number}"
    session = state.add(name, pb.SESSION_STATE_QUEUED, waiting="needs 1 GPU", **facts)
    session.spec.resources.CopyFrom(resources_pb2.Resources(gpu_thousandths=gpu))
    return session


def at(seconds):
    return Timestamp(seconds=int(NOW + seconds))


def test_the_queue_in_its_order(nsml, state):
    for number in (1, 2, 3):
        waiting(state, number)
    first, *rows = nsml("queue").stdout.splitlines()
    assert first == ("queue 3 · GPUs asked for 0, free 3.5, most free on one node 2 (node gpu-1)")
    assert rows[0].split() == [
        "#",
        "Name",
        "Owner",
        "GPUs",
        "Priority",
        "Age",
        "Why",
        "Free",
        "in",
    ]
    assert [row.split()[:2] for row in rows[2:]] == [
        ["1", "kim/mnist/1"],
        ["2", "kim/mnist/2"],
        ["3", "kim/mnist/3"],
    ]
    assert nsml("status", "--queue").stdout == nsml("queue").stdout
    assert nsml("queue", "-o", "name", "-n", "1").stdout == "kim/mnist/1\n"


def test_the_queue_for_programs(nsml, state):
    waiting(state, 1, gpu=500)
    shown = json.loads(nsml("queue", "-j").stdout)
    assert (shown["queued"], shown["free_gpus"], shown["largest_hole"]) == (1, 3.5, 2)
    [row] = shown["items"]
    assert (row["place"], row["name"], row["gpus"], row["reason"]) == (
        1,
        "kim/mnist/1",
        0.5,
        "needs 1 GPU",
    )
    assert nsml("queue", "--fields", "nope", "-j", check=False).code == 2
    assert nsml("queue", "-w", "-o", "csv", check=False).code == 2


def test_a_narrow_terminal_shows_the_whole_reason_and_when_enough_is_free():
    row = pb.QueuedSession(
        place=1,
        session="kim/mnist/1",
        owner="kim",
        resources=resources_pb2.Resources(gpu_thousandths=4000),
        replica_count=1,
        priority=pb.PRIORITY_HIGH,
        created_at=at(-60),
        reason="needs 4 GPUs on one node; most free on one node: 2 (node gpu-1)",
        expected_start=at(3600),
    )
    for room in (60, 80):
        table = tables.render(tables.pick(queue.COLUMNS), [row], now=NOW, room=room)
        _, _, line, *more = table.lines
        assert max(map(len, table.lines)) <= room
        assert line.endswith("1h at most")
        begun = line[line.index("needs") : line.index("1h at most")].strip()
        assert " ".join([begun, *map(str.strip, more)]) == row.reason


def test_nothing_of_a_queue_wraps(nsml, state, monkeypatch):
    for number in (1, 2):
        waiting(state, number)
    for room in (40, 60, 80):
        monkeypatch.setenv("COLUMNS", str(room))
        shown = nsml("queue", terminal=True, NO_COLOR="1").stdout.splitlines()
        assert max(map(len, shown)) <= room
        assert "most free on one node" in " ".join(shown[:2])


def test_an_empty_queue_still_tells_what_is_free(nsml, state):
    assert nsml("queue").stdout.startswith("queue 0 · ")
    assert json.loads(nsml("queue", "-j").stdout)["items"] == []


def test_who_holds_it_and_until_when(nsml, state):
    session = waiting(state, 1)
    state.why[session.name] = pb.Waiting(
        place=3,
        queued=12,
        reason="needs 8 GPUs on one node; most free on one node: 6 (node a)",
        shortages=[pb.Shortage(what="GPUs", nodes=3), pb.Shortage(what="drained", nodes=1)],
        short="GPUs",
        holders=[
            pb.Holder(session="kim/mnist/0", owner="kim", held=4000, nodes=1, until=at(720)),
            pb.Holder(owner="lee", held=1000, nodes=2),
        ],
        expected_start=at(720),
    )
    assert nsml("status", "--explain", "@last").stdout.splitlines()[1:] == [
        "  why: needs 8 GPUs on one node; most free on one node: 6 (node a)",
        "  starts: enough is free in 12m at the latest, unless a session ahead of it takes it",
        "  place: 3 of 12 in the queue",
        "  held: 4 GPUs by kim/mnist/0, for 12m more at most",
        "  held: 1 GPU by a session of lee on 2 nodes, no time limit",
        "  nodes: 4 in all; 3 are short of GPUs, 1 is drained",
    ]
    shown = json.loads(nsml("status", "--explain", "@last", "-j").stdout)["queue"]
    assert [one["session"] for one in shown["holders"]] == ["kim/mnist/0", None]
    assert shown["holders"][1]["until"] is None


@pytest.mark.parametrize(
    ("short", "held", "shown"),
    [("GPUs", 500, 0.5), ("cores", 2000, 2.0), ("memory", 10**9, 10**9), ("sessions", 1, 1)],
)
def test_what_is_held_is_written_in_the_unit_of_what_is_short(nsml, state, short, held, shown):
    session = waiting(state, 1)
    holders = [pb.Holder(owner="lee", held=held)]
    state.why[session.name] = pb.Waiting(short=short, holders=holders)
    record = json.loads(nsml("status", "--explain", "@last", "-j").stdout)
    assert record["queue"]["holders"][0]["held"] == shown


def test_how_many_of_others_wait_in_ones_project_is_told():
    page = pb.ListQueueResponse(queued=12, chosen=1, hidden=2, largest_hole=0)
    assert queue.totals_text(page).startswith("queue 1 of 12 · 2 of others in it · GPUs asked for")
    assert queue.totals_record(page)["hidden"] == 2
    page.hidden = 0
    assert queue.totals_text(page).startswith("queue 1 of 12 · GPUs asked for")


def test_what_if(nsml, state):
    waiting(state, 1)
    change = "gpus=0.5,priority=high,time-limit=1h30m,nodes=2,gpu-model=A100,pod=,cpus=4,memory=2G,network="
    shown = nsml("status", "--explain", "@last", "--what-if", change).stdout
    assert shown.splitlines()[-1] == f"with {change} it would start now: gpu-1"
    [asked] = state.supposed
    assert asked.time_limit.seconds == 5400
    assert (asked.gpu_thousandths, asked.replica_count, asked.priority) == (
        500,
        2,
        pb.PRIORITY_HIGH,
    )
    assert (asked.gpu_model, asked.HasField("pod"), asked.pod) == ("A100", True, "")
    assert (asked.HasField("network"), asked.network) == (True, 0)
    assert (asked.cpu_thousandths, asked.memory_bytes) == (4000, 2_000_000_000)
    shown = json.loads(nsml("status", "--explain", "@last", "--what-if", "gpus=4", "-j").stdout)
    assert shown["what_if"] == {"starts": True, "nodes": ["gpu-1"], "queue": None}
    assert not state.supposed[1].HasField("replica_count")
    assert not state.supposed[1].HasField("time_limit")
    nsml("status", "--explain", "@last", "--what-if", "time-limit=")
    without = state.supposed[2]
    assert (without.HasField("time_limit"), without.time_limit.seconds) == (True, 0)


def share(**facts):
    facts = {"held_gpus": 2.0, "lately_gpus": 3.4, "weight": 1.0, "value": 5.4, **facts}
    return pb.FairShare(account="kim", half_life={"seconds": 7 * 86_400}, **facts)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (share(), "kim 5.4 (2 GPUs now, 3.4 recent; half-life 7d)"),
        (
            share(held_gpus=1.0, lately_gpus=0.004, weight=2.5, value=0.4016, is_partial=True),
            (
                "kim 0.4 (1 GPU now, <0.01 recent; half-life 7d; weight 2.5; "
                "older usage is still being counted)"
            ),
        ),
        (
            pb.FairShare(account="kim", held_gpus=0.5, weight=1.0, value=0.5),
            "kim 0.5 (0.5 GPUs now)",
        ),
        (
            share(held_gpus=1234.0, lately_gpus=99.94, value=1333.94),
            "kim 1,334 (1,234 GPUs now, 99.9 recent; half-life 7d)",
        ),
    ],
)
def test_by_what_its_account_is_ordered(nsml, state, found, said):
    session = waiting(state, 1)
    state.why[session.name] = pb.Waiting(place=1, queued=1, reason="needs 1 GPU", share=found)
    lines = nsml("status", "--explain", "@last").stdout.splitlines()
    assert f"  share: {said}" in lines
    shown = json.loads(nsml("status", "--explain", "@last", "-j").stdout)["queue"]["share"]
    assert (shown["value"], shown["lately_gpus"]) == (found.value, found.lately_gpus)
    assert shown["half_life_s"] == (7 * 86_400 if found.HasField("half_life") else None)


DAY = 86_400


@pytest.mark.parametrize(
    ("facts", "starts", "cell"),
    [
        (
            {"budget_renews": at(7 * DAY), "expected_start": at(7 * DAY)},
            "its project's budget resets in 7d, and enough is free then",
            "7d at most",
        ),
        (
            {"budget_renews": at(7 * DAY), "expected_start": at(8 * DAY)},
            "its project's budget resets in 7d, and enough is free in 8d at the latest",
            "8d at most",
        ),
        (
            {"budget_renews": at(7 * DAY)},
            "its project's budget resets in 7d; unknown when enough is free then",
            "7d at least",
        ),
        ({"room_is_held": True}, "unknown: enough is free, but reserved for others", "held"),
        (
            {"room_is_held": True, "expected_start": at(3600)},
            "enough is free in 1h at the latest",
            "1h at most",
        ),
        ({}, "unknown", "-"),
        (
            {"holders": [pb.Holder(session="kim/mnist/2", owner="kim", held=1000)]},
            "unknown (blocking sessions have no time limit)",
            "-",
        ),
    ],
)
def test_when_it_starts_is_told_as_far_as_it_is_known(nsml, state, facts, starts, cell):
    session = waiting(state, 1)
    state.why[session.name] = pb.Waiting(place=1, queued=2, reason="as it is", **facts)
    told = nsml("status", "--explain", "@last").stdout.splitlines()
    assert told[2] == f"  starts: {starts}"
    shown = json.loads(nsml("status", "--explain", "@last", "-j").stdout)["queue"]
    assert shown["room_is_held"] == ("room_is_held" in facts)
    assert bool(shown["budget_renews"]) == ("budget_renews" in facts)
    of_row = {name: fact for name, fact in facts.items() if name != "holders"}
    state.rows.append(pb.QueuedSession(place=2, session="kim/mnist/9", owner="kim", **of_row))
    assert nsml("queue").stdout.splitlines()[-1].endswith(f"  {cell}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", "''"),
        ("gpus", "'gpus' is not KEY=VALUE"),
        ("gpu=4", "it has no 'gpu'"),
        ("gpus=4,gpus=5", "gpus is given twice"),
        ("gpus=-1", "gpus: '-1' is less than none\n  try: nsml status --what-if gpus=0 ..."),
        ("gpus=1.5", "--what-if gpus=1 ...\n       nsml status --what-if gpus=2 ..."),
        ("time-limit=two hours", "try: nsml status --what-if time-limit=2h ..."),
        ("gpus=", "gpus: '' is not a number"),
        ("priority=urgent", "priority: 'urgent' is not one of idle, low, normal, high"),
        ("time-limit=soon", "time-limit: 'soon' is not a duration"),
        ("time-limit=0", "time-limit: 0 is no time"),
        ("time-limit=2", "time-limit: 2 lacks its unit"),
        ("time-limit=2", "try: nsml status --what-if time-limit=2h ..."),
        ("nodes=0", "nodes: 0 is too small: the minimum is 1"),
        ("memory=1", "memory: 1 is too small"),
        ("gpus=4, ", "''"),
    ],
)
def test_what_is_no_change_is_refused_with_what_would_be_one(nsml, state, change, said):
    waiting(state, 1)
    result = nsml("status", "--explain", "@last", "--what-if", change, check=False)
    assert result.code == 2
    assert said in result.stderr
    if "KEY=VALUE" in said or "has no" in said:
        assert (
            "gpus, cpus, memory, nodes, priority, time-limit, gpu-model, pod, network"
            in result.stderr
        )
    assert not state.supposed


def test_what_if_of_no_session(nsml):
    result = nsml("status", "--what-if", "gpus=1", check=False)
    assert result.code == 2
    assert "try: nsml status --help" in result.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("g", ["gpus=", "gpu-model="]),
        ("gpus=4,no", ["gpus=4,nodes="]),
        ("gpus=4,g", ["gpus=4,gpu-model="]),
        ("gpus=4,priority=h", ["gpus=4,priority=high"]),
    ],
)
def test_completion_of_a_change(typed, offered):
    option = click.Option(["--what-if"], type=WHAT_IF)
    found = WHAT_IF.shell_complete(click.Context(click.Command("x")), option, typed)
    assert [item.value for item in found] == offered
