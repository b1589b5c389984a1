"""The judge of recorded runs: a sound run is sound, and each doctored one is found out."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from chaos.check import (
    BACKWARDS,
    CHANGED,
    KINDS,
    LEFT,
    LOST,
    OTHERWISE,
    REPEATED,
    REPORTS,
    STALE,
    TWICE,
    UNPROVED,
    counts,
    violations,
)
from chaos.recording import read_recorded
from chaos.summary import lines_of, record_of
from tests.support.recorded_run import (
    GPU,
    OTHER_GPU,
    SOUND,
    alloc,
    create,
    ended,
    program,
    session,
    write_sound_run,
)


def doctored(part, change):
    """The sound run with one of its accounts changed."""
    changed = copy.deepcopy(list(getattr(SOUND, part)))
    result = change(changed)
    return replace(SOUND, **{part: tuple(changed if result is None else result)})


def edit(number, **values):
    return lambda records: records[number].update(values)


def test_a_sound_run_has_no_violation():
    assert violations(SOUND) == []
    assert set(counts([])) == set(KINDS)


KILLED = {"began": "program", "parts": ["s1.1.0"], "at": 3}
BY_SIGNAL = {"state": "FAILED", "exit_code": 137, "end": "CAUSE_PROGRAM_FAILED"}


def test_a_session_whose_program_was_killed_may_fail_by_that():
    killed = replace(SOUND, faults=(*SOUND.faults, KILLED))
    failed = replace(killed, outcome=({**SOUND.outcome[0], **BY_SIGNAL}, *SOUND.outcome[1:]))
    of_store = [one for one in violations(failed) if one.kind == OTHERWISE]
    assert of_store == []
    # Nobody else may, nor in another way, nor with a second attempt.
    for faults, facts in [
        (SOUND.faults, {}),
        (killed.faults, {"exit_code": 1}),
        (killed.faults, {"attempt": 2}),
    ]:
        item = {**SOUND.outcome[0], **BY_SIGNAL, **facts}
        other = replace(SOUND, faults=faults, outcome=(item, *SOUND.outcome[1:]))
        assert [one.kind for one in violations(other) if one.kind == OTHERWISE] == [OTHERWISE]


DOCTORED = {
    "an answered session is gone": (LOST, "outcome", lambda r: r[:1]),
    "an answered session never ends": (OTHERWISE, "outcome", edit(0, state="RUNNING")),
    "a session failed that was to succeed": (OTHERWISE, "outcome", edit(0, exit_code=1)),
    "a session was run again": (OTHERWISE, "outcome", edit(0, attempt=2)),
    "a request was answered with two sessions": (
        REPEATED, "operations", lambda r: r[3].update(session="s2")
    ),
    "a request made two sessions that nobody was told of": (
        REPEATED, "store", lambda r: r.insert(3, session(3, "s3", "QUEUED", request="r-s1"))
    ),
    "a replica has two processes": (
        TWICE, "programs", lambda r: r.append(program("s1", 400, 500, OTHER_GPU, 3))
    ),
    "a second attempt begins before the first one ended": (
        TWICE, "programs",
        lambda r: r.append(program("s1", 150, 160, OTHER_GPU, 0, attempt=2, saved=[])),
    ),
    "a device is used by two": (TWICE, "programs", edit(1, **{"from": 199})),
    "a device is given twice": (
        TWICE, "store",
        lambda r: r.insert(4, alloc(4, ("s2", 1, GPU, 1), term=2, node="n2")),
    ),
    "a replica is given two places": (
        TWICE, "store",
        lambda r: r.insert(4, alloc(4, ("s1", 1, OTHER_GPU, 1), term=2, node="n2")),
    ),
    "a session has two attempts at once": (
        TWICE, "store",
        lambda r: r.insert(4, alloc(4, ("s1", 2, OTHER_GPU, 1), term=2, node="n2")),
    ),
    "a report is lost": (REPORTS, "outcome", edit(0, reports={"1.0": [0, 1]})),
    "a report is doubled": (REPORTS, "outcome", edit(0, reports={"1.0": [0, 1, 1, 2]})),
    "reports are in another order": (REPORTS, "outcome", edit(0, reports={"1.0": [1, 0, 2]})),
    "a line is lost": (REPORTS, "outcome", edit(0, lines={"1.0": [0, 1]})),
    "a line is damaged": (REPORTS, "outcome", edit(0, lines={"1.0": [0, -1, 2]})),
    "nothing at all arrived": (REPORTS, "outcome", edit(0, reports={}, lines={})),
    "a report came that nobody made": (
        REPORTS, "outcome", edit(0, reports={"1.0": [0, 1, 2, 3]})
    ),
    "reports are swapped at the end": (REPORTS, "outcome", edit(0, reports={"1.0": [0, 2, 1]})),
    "a gap is told where nothing is lost": (REPORTS, "outcome", edit(0, missing=1)),
    "a gap is told though no disk was full": (
        REPORTS, "outcome", edit(0, reports={"1.0": [0, 2]}, missing=1)
    ),
    "a medium is lost": (REPORTS, "outcome", edit(0, media={})),
    "a medium is there twice": (REPORTS, "outcome", edit(0, media={"1.0": [1, 1]})),
    "a medium came that nobody showed": (REPORTS, "outcome", edit(0, media={"1.0": [1, 2]})),
    "a medium has no bytes": (REPORTS, "outcome", edit(0, media_lost=1)),
    "bytes of a log are told as missing": (REPORTS, "outcome", edit(0, missing_bytes=3)),
    "a checkpoint is lost": (REPORTS, "outcome", edit(0, checkpoints=[])),
    "a checkpoint is there twice": (REPORTS, "outcome", edit(0, checkpoints=["1", "1"])),
    "a follower missed a line": (REPORTS, "operations", edit(10, lines=[0, 1])),
    "a follower got a line twice": (REPORTS, "operations", edit(10, lines=[0, 1, 1, 2])),
    "an older leader placed after a newer one": (
        STALE, "store", edit(7, value={"term": 2, "replicas": []})
    ),
    "an older leader ended a session": (
        STALE, "store", lambda r: r[8]["value"].update(term=2)
    ),
    "somebody placed while nobody led": (
        STALE, "store", lambda r: r.insert(6, alloc(5, term=2))
    ),
    "somebody placed who never led": (STALE, "store", lambda r: r[3]["value"].update(term=0)),
    "a term went back": (STALE, "store", lambda r: r[6].update(created=1)),
    "an ended session got another end": (
        CHANGED, "store", lambda r: r.append(session(9, "s1", "FAILED", term=6, attempt=1))
    ),
    "an ended session came back": (
        CHANGED, "store", lambda r: r.append(session(9, "s1", "RUNNING", term=6, attempt=1))
    ),
    "an attempt went back": (
        CHANGED, "store", lambda r: r.append(session(9, "s2", "SUCCEEDED", term=6))
    ),
    "clients were told two ends": (
        CHANGED, "operations", lambda r: r[9].update(states={"s1": "STOPPED"})
    ),
    "the outcome is another end": (CHANGED, "outcome", edit(0, state="STOPPED")),
    "a listing is older than one before": (BACKWARDS, "operations", edit(12, revision=4)),
    "a stream went back": (BACKWARDS, "operations", edit(9, revision=5)),
    "a device is held at the end": (
        LEFT, "store", lambda r: r.append(alloc(9, ("s2", 1, GPU, 1000), term=6))
    ),
    "nothing ran": (UNPROVED, "programs", lambda r: []),
    "nothing fired": (UNPROVED, "faults", lambda r: r[:1]),
    "one fault never fired": (UNPROVED, "faults", lambda r: r[:2]),
}  # fmt: skip


@pytest.mark.parametrize("what", DOCTORED)
def test_a_doctored_run_is_found_out(what):
    kind, part, change = DOCTORED[what]
    found = violations(doctored(part, change))
    assert kind in {violation.kind for violation in found}, found


def full_disk(outcome, **more):
    """The sound run where the first program's disk was full when it made its second report."""
    full = (
        {"began": "disk", "parts": ["n1"], "at": 105},
        {"healed": "disk", "kind": "agent", "parts": ["n1"], "proof": "refused", "at": 115},
    )
    first = {**SOUND.outcome[0], **outcome}
    changed = replace(SOUND, faults=SOUND.faults[:2] + full, outcome=(first, SOUND.outcome[1]))
    return {violation.text for violation in violations(replace(changed, **more))}


def test_what_a_full_disk_took_is_a_gap_that_must_be_told_and_of_that_size():
    hole = {"reports": {"1.0": [0, 2]}}
    assert full_disk({**hole, "missing": 1}) == set()
    assert full_disk({**hole, "missing": 0}) == {"kim/None/s1 (s1): 1 lost, 0 told as missing"}
    assert full_disk({**hole, "missing": 2}) == {"kim/None/s1 (s1): 1 lost, 2 told as missing"}
    everything = {**hole, "media": {}, "checkpoints": []}
    assert full_disk({**everything, "missing": 3}) == set()
    assert full_disk({**everything, "missing": 2}) != set()
    # A checkpoint may be listed as lost instead.
    listed = {**everything, "checkpoints_lost": ["1"]}
    assert full_disk({**listed, "missing": 2}) == set()
    assert full_disk({**listed, "missing": 3}) != set()
    assert full_disk({"checkpoints": [], "checkpoints_lost": ["1"]}) == set()
    # A line is the program's own to write again.
    assert full_disk({"lines": {"1.0": [0, 2]}, "missing": 1}) != set()


def test_a_full_disk_of_another_node_or_time_explains_nothing():
    hole = {"reports": {"1.0": [0, 2]}, "missing": 1}
    for number, change in [(1, {"parts": ["n2"]}), (0, {"at": 5_000_000_000})]:
        run = doctored("faults", edit(2 + number, **change))
        assert any(
            "no disk was full" in violation.text
            for violation in violations(
                replace(run, outcome=({**SOUND.outcome[0], **hole}, SOUND.outcome[1]))
            )
        )


def test_a_killed_program_may_have_counted_what_it_had_not_returned_from():
    stopped = program("s1", 100, 200, GPU, 3, end=None)
    more = {"programs": (stopped, SOUND.programs[1])}
    hole = {"reports": {"1.0": [0, 2]}, **BY_SIGNAL}
    texts = [full_disk({**hole, "missing": told}, **more) for told in (1, 2, 3)]
    assert [any("told as missing" in text for text in found) for found in texts] == [
        False, False, True,
    ]  # fmt: skip


def test_a_session_that_found_no_room_may_be_tried_again_or_lost():
    """Its replica was given a node whose disk was full, and never began."""
    programs = SOUND.programs[1:]
    item = {"attempt": 2, "reports": {}, "lines": {}, "media": {}, "checkpoints": []}
    of_ends = [
        {
            text
            for text in full_disk({**item, **ended_so}, programs=programs)
            if "was to end" in text
        }
        for ended_so in (
            {},
            {"state": "FAILED", "end": "CAUSE_NODE_LOST", "exit_code": -1},
            {"state": "FAILED", "end": "CAUSE_START_FAILED", "exit_code": 1},
        )
    ]
    assert [bool(texts) for texts in of_ends] == [False, False, True]


def test_a_program_that_runs_on_is_left():
    found = violations(replace(SOUND, run={**SOUND.run, "left": ["17 python"]}))
    assert [violation.kind for violation in found] == [LEFT]


def test_every_kind_of_violation_was_tried():
    assert {kind for kind, _, _ in DOCTORED.values()} == set(KINDS)


def test_a_killed_program_may_have_done_one_thing_more_than_it_wrote_down():
    stopped = program("s1", 100, 200, GPU, 3, end=None, saved=[])
    run = doctored("programs", lambda records: [stopped, records[1]])
    assert violations(replace(run, outcome=(ended("s1", 4), ended("s2", 2)))) == []
    found = violations(replace(run, outcome=(ended("s1", 5), ended("s2", 2))))
    assert {violation.kind for violation in found} == {REPORTS}


def test_a_session_that_was_removed_on_request_is_not_lost():
    removed = {"do": "remove", "op": 6, "client": "c1", "session": "s2", "at": 60}
    run = doctored("operations", lambda records: records.append(removed))
    assert violations(replace(run, outcome=SOUND.outcome[:1])) == []


def test_a_session_that_was_stopped_before_it_was_placed_is_as_wished():
    asked = create(1, "s1", 10)
    asked[0]["wish"] = "STOPPED"
    item = ended("s1", 0, state="STOPPED", attempt=0, reports={}, lines={})
    run = replace(SOUND, operations=tuple(asked), outcome=(item, SOUND.outcome[1]), store=())
    assert violations(replace(run, programs=SOUND.programs[1:])) == []


def test_a_run_is_read_as_it_was_written_and_told(tmp_path):
    write_sound_run(tmp_path)
    assert read_recorded(tmp_path) == SOUND
    record = record_of(SOUND, violations(doctored("outcome", edit(0, missing=1))))
    assert record["operations"] == {"create": 3, "list": 2, "log seen": 1, "watch seen": 2}
    assert record["violations"][REPORTS] == 1
    assert any(line.startswith(f"VIOLATION {REPORTS}") for line in lines_of(record))
