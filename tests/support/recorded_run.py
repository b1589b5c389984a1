"""A small sound run of chaos, as it would have been recorded; tests doctor it."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.recording import (
    FAULTS,
    OPERATIONS,
    OUTCOME,
    PROGRAMS,
    RUN,
    STORE,
    Recorded,
    write_lines,
)

GPU, OTHER_GPU = "GPU-a", "GPU-b"


def alloc(revision, *held, term, node="n1"):
    replicas = [
        {"session": session, "attempt": attempt, "rank": 0, "devices": {device: share}}
        for session, attempt, device, share in held
    ]
    value = {"term": term, "replicas": replicas}
    return {"revision": revision, "key": f"alloc/{node}", "created": 3, "value": value}


def session(revision, name, state, *, term=0, attempt=0, request=""):
    value = {"name": name, "request": request or f"r-{name}", "state": state, "attempt": attempt}
    value["term"] = term
    return {"revision": revision, "key": f"session/{name}", "created": 2, "value": value}


def leader(revision, *, gone=False):
    value = None if gone else {"member": "cp"}
    return {"revision": revision, "key": "leader", "created": revision, "value": value}


def program(name, begin, last, device, steps, **more):
    numbers = list(range(steps))
    did = {"reported": numbers, "printed": numbers, "shown": numbers[1:2], "saved": numbers[1:2]}
    did |= {what: more.pop(what) for what in did if what in more}
    times = {what: [begin + 10 * step for step in done] for what, done in did.items()}
    return {
        "session": name, "attempt": 1, "rank": 0, "pid": begin, "devices": [device],
        "from": begin, "to": last, "end": 0, **did, "at": times, **more,
    }  # fmt: skip


def ended(name, steps, state="SUCCEEDED", **more):
    steps = list(range(steps))
    return {
        "session": name, "name": f"kim/None/{name}", "state": state, "attempt": 1, "exit_code": 0,
        "end": "CAUSE_COMPLETED", "reports": {"1.0": steps}, "lines": {"1.0": steps},
        "checkpoints": ["1"], "checkpoints_lost": [], "media": {"1.0": [1]}, "media_lost": 0, "missing": 0,
        "missing_bytes": 0, **more,
    }  # fmt: skip


def create(op, name, at, client="c1"):
    asked = {"do": "create", "op": op, "client": client, "request": f"r-{name}", "kind": "trains"}
    return [
        {**asked, "wish": "SUCCEEDED", "share": 1000, "at": at},
        {"ok": op, "session": name, "name": name, "state": "QUEUED", "attempt": 0, "at": at + 1},
    ]


SOUND = Recorded(
    run={
        "seed": 7, "lasted_s": 9.0, "fired": {"kill agent": 1}, "failed": {}, "left_out": [],
        "left": [], "faults": ["kill", "disk"],
    },
    operations=(
        *create(1, "s1", 10),
        *create(2, "s1", 20, client="again"),
        *create(3, "s2", 30),
        {"do": "list", "op": 4, "client": "c1", "at": 40},
        {"ok": 4, "revision": 5, "states": {"s1": "RUNNING"}, "at": 41},
        {"saw": "watch", "client": "w1", "revision": 6, "states": {"s1": "RUNNING"}, "at": 42},
        {"saw": "watch", "client": "w1", "revision": 9, "states": {"s1": "SUCCEEDED"}, "at": 43},
        {"saw": "log", "client": "f1", "session": "s1", "lines": [0, 1, 2], "whole": True, "at": 44},
        {"do": "list", "op": 5, "client": "c1", "at": 50},
        {"ok": 5, "revision": 7, "states": {}, "at": 51},
    ),
    faults=(
        {"began": "kill", "parts": ["node1"], "at": 1},
        {"healed": "kill", "kind": "agent", "parts": ["node1"], "proof": "gone", "at": 2},
        {"began": "disk", "parts": ["n2"], "at": 105},
        {"healed": "disk", "kind": "agent", "parts": ["n2"], "proof": "refused", "at": 115},
    ),
    programs=(program("s1", 100, 200, GPU, 3), program("s2", 201, 300, GPU, 2)),
    store=(
        leader(2),
        session(3, "s1", "QUEUED"),
        session(3, "s2", "QUEUED"),
        alloc(4, ("s1", 1, GPU, 1000), term=2),
        session(4, "s1", "RUNNING", term=2, attempt=1),
        leader(5, gone=True),
        leader(6),
        alloc(7, ("s2", 1, GPU, 1000), term=6),
        session(7, "s1", "SUCCEEDED", term=6, attempt=1),
        alloc(8, term=6),
        session(8, "s2", "SUCCEEDED", term=6, attempt=1),
    ),
    outcome=(ended("s1", 3), ended("s2", 2)),
)  # fmt: skip


def write_sound_run(folder: Path) -> None:
    """What `nsml doctor chaos --keep` leaves."""
    (folder / RUN).write_text(json.dumps(SOUND.run))
    for name, records in (
        (OPERATIONS, SOUND.operations),
        (FAULTS, SOUND.faults),
        (PROGRAMS, SOUND.programs),
        (STORE, SOUND.store),
        (OUTCOME, SOUND.outcome),
    ):
        write_lines(folder / name, records)
