"""What is wrong with a recorded run. Pure: records in, violations out.

Four accounts are held against one another: what clients were answered, what the programs did by their
own word, every change of the store in the order of its revisions, and what the platform tells at the
end. No search is needed: the store's revisions are a total order, and programs do not lie.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chaos.recording import Record, Recorded

LOST = "sessions lost"
TWICE = "running twice"
REPORTS = "reports lost or doubled"
STALE = "stale commits accepted"
CHANGED = "ends changed"
BACKWARDS = "revisions gone back"
REPEATED = "request ids with two sessions"
OTHERWISE = "ends other than asked for"
LEFT = "left behind"
UNPROVED = "nothing proved"

KINDS: Final = (
    LOST, TWICE, REPORTS, STALE, CHANGED, BACKWARDS, REPEATED, OTHERWISE, LEFT, UNPROVED,
)  # fmt: skip
"""Every kind of violation, as it is counted."""

ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
PROGRAM: Final = "program"
"""The fault that ends the program of a session; `parts` of its record are SESSION.ATTEMPT.RANK."""
DISK: Final = "disk"
"""The fault that leaves no room on a disk; `parts` of its record are whose it is."""
_FULL_FOR_NS = 3_000_000_000
"""So long after there is room again may a call return that found none: it is noted after its return."""
_FOUND_NO_ROOM = frozenset({"CAUSE_NODE_LOST"})
"""The end of a session whose shim could not write down that it began."""
_WHOLE = 1000
"""Thousandths of a device."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must never be, with its evidence."""

    kind: str
    text: str


def violations(recorded: Recorded) -> list[Violation]:
    """Everything that is wrong with a run."""
    answers = _answers(recorded.operations)
    return [
        *_lost(answers, recorded.outcome),
        *_ended_otherwise(answers, recorded),
        *_ran_twice(answers, recorded.programs),
        *_held_twice(recorded.store),
        *_records(recorded),
        *_followed(recorded.operations, recorded.programs),
        *_stale(recorded.store),
        *_changed(recorded),
        *_backwards(recorded.operations),
        *_repeated(answers, recorded.store),
        *_left(recorded),
        *_unproved(recorded),
    ]


def counts(found: Iterable[Violation]) -> dict[str, int]:
    """How many of each kind, the ones that are absent included."""
    by_kind = Counter(violation.kind for violation in found)
    return {kind: by_kind[kind] for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Answer:
    """One question and what came of it; `answered` is None for one that nobody answered."""

    asked: Record
    answered: Record | None
    is_refused: bool


def _answers(operations: Iterable[Record]) -> list[Answer]:
    asked: dict[int, Record] = {}
    found: list[Answer] = []
    for record in operations:
        if "do" in record:
            asked[record["op"]] = record
        elif "ok" in record:
            found.append(Answer(asked.pop(record["ok"]), record, is_refused=False))
        elif "fail" in record:
            found.append(Answer(asked.pop(record["fail"]), record, is_refused=True))
    found += [Answer(question, None, is_refused=False) for question in asked.values()]
    return found


def _created(answers: Iterable[Answer]) -> Iterator[Answer]:
    for answer in answers:
        if answer.asked["do"] == "create" and answer.answered and not answer.is_refused:
            yield answer


# Sessions


def _lost(answers: Sequence[Answer], outcome: Iterable[Record]) -> Iterator[Violation]:
    there = {item["session"] for item in outcome}
    gone = {answer.asked["session"] for answer in answers if answer.asked["do"] == "remove"}
    told = {answer.answered["session"] for answer in _created(answers) if answer.answered}
    for session in sorted(told - there - gone):
        yield Violation(LOST, f"{session} was answered and is not there")


def _ended_otherwise(answers: Sequence[Answer], recorded: Recorded) -> Iterator[Violation]:
    outcome, full = recorded.outcome, _FullDisks.of(recorded)
    killed = {
        part.split(".")[0]
        for fault in recorded.faults
        if fault.get("began") == PROGRAM
        for part in fault["parts"]
    }
    ends = {item["session"]: item for item in outcome}
    wishes: dict[str, Record] = {}
    for answer in _created(answers):
        if answer.answered:
            wishes[answer.answered["session"]] = answer.asked
    for item in outcome:
        if item["state"] not in ENDED:
            yield Violation(OTHERWISE, f"{item['name']} is {item['state']} and does not end")
    for session, wish in wishes.items():
        if session not in ends or ends[session]["state"] not in ENDED:
            continue
        item = ends[session]
        code = 3 if wish["wish"] == "FAILED" else 0
        found_no_room = full.kept_from_starting(recorded.programs, session)
        is_as_wished = item["state"] == wish["wish"] and (item["attempt"] <= 1 or found_no_room)
        if session in killed and _was_killed(item, found_no_room=found_no_room):
            continue
        if found_no_room and item["state"] == "FAILED" and item["end"] in _FOUND_NO_ROOM:
            continue
        if not is_as_wished or (item["state"] != "STOPPED" and item["exit_code"] != code):
            yield Violation(
                OTHERWISE,
                f"{item['name']} ({session}, {wish['kind']}) was to end {wish['wish']}: {item['state']}, "
                f"{item['end']}, exit code {item['exit_code']}, attempt {item['attempt']}",
            )


def _was_killed(item: Record, *, found_no_room: bool) -> bool:
    """Whether a session ended as one does whose program got SIGKILL; it may have ended just before."""
    is_by_signal = item["exit_code"] in {-signal.SIGKILL, 128 + signal.SIGKILL}
    return item["state"] == "FAILED" and is_by_signal and (item["attempt"] <= 1 or found_no_room)


def _repeated(answers: Sequence[Answer], store: Iterable[Record]) -> Iterator[Violation]:
    made: dict[str, set[str]] = defaultdict(set)
    for answer in _created(answers):
        if answer.answered:
            made[answer.asked["request"]].add(answer.answered["session"])
    for change in store:
        if change["key"].startswith("session/") and change["value"]:
            made[change["value"]["request"]].add(change["key"].removeprefix("session/"))
    # With a session that its owner removed goes what knew its request.
    gone = {answer.asked["session"] for answer in answers if answer.asked["do"] == "remove"}
    for request, sessions in made.items():
        if len(sessions - gone) > 1:
            yield Violation(REPEATED, f"request {request} made {', '.join(sorted(sessions))}")


# Programs


def _ran_twice(answers: Sequence[Answer], programs: Sequence[Record]) -> Iterator[Violation]:
    """No replica has two processes, no session two attempts at a time, no device too much."""
    by_replica: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    by_session: dict[str, list[Record]] = defaultdict(list)
    for program in programs:
        by_replica[program["session"], program["attempt"], program["rank"]].append(program)
        by_session[program["session"]].append(program)
    for (session, attempt, rank), processes in by_replica.items():
        if len(processes) > 1:
            pids = ", ".join(str(one["pid"]) for one in processes)
            yield Violation(TWICE, f"{session} {attempt}.{rank} was started as {pids}")
    for session, processes in by_session.items():
        for one in processes:
            for other in processes:
                if one["attempt"] < other["attempt"] and other["from"] <= one["to"]:
                    text = (
                        f"{session}: attempt {other['attempt']} began before {one['attempt']} ended"
                    )
                    yield Violation(TWICE, text)
    shares = {
        answer.answered["session"]: answer.asked["share"] % _WHOLE or _WHOLE
        for answer in _created(answers)
        if answer.answered
    }
    yield from _devices_held(programs, shares)


def _devices_held(programs: Iterable[Record], shares: dict[str, int]) -> Iterator[Violation]:
    moves: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for program in programs:
        for device in program["devices"]:
            share = shares.get(program["session"], 1)
            moves[device].append((program["from"], share, program["session"]))
            moves[device].append((program["to"], -share, program["session"]))
    for device, changes in moves.items():
        held = 0
        for _, share, session in sorted(changes):
            held += share
            if held > _WHOLE:
                yield Violation(TWICE, f"{device} is held {held}/{_WHOLE} when {session} begins")


def _records(recorded: Recorded) -> Iterator[Violation]:
    """Every report, line, medium and checkpoint once and in order, or within a gap that is told.

    A program that was killed may have done one thing more than its ledger says.
    """
    told = {item["session"]: item for item in recorded.outcome}
    full = _FullDisks.of(recorded)
    lost: Counter[str] = Counter()
    told_by_name: Counter[str] = Counter()
    """Checkpoints, which are listed as lost instead of counted; unless the program was killed before."""
    cut_short: Counter[str] = Counter()
    for program in recorded.programs:
        item = told.get(program["session"])
        if item is None:
            continue
        more = 0 if program["end"] is not None else 1
        cut_short[program["session"]] += more
        yield from _lines(program, item, more)
        for what, said in _kept(program, item).items():
            where = f"{item['name']} ({program['session']}) {_replica(program)}, {what}"
            done = dict(zip(program[what], program["at"][what], strict=True))
            beyond = [step for step in said if step not in done]
            if said != sorted(set(said)):
                yield Violation(REPORTS, f"{where}: not once and in order: {_around(said)}")
            if len(beyond) > more or any(step < max(done, default=-1) for step in beyond):
                yield Violation(REPORTS, f"{where}: nobody made {beyond[:4]}")
            absent = sorted(done.keys() - set(said))
            named = set(map(int, item["checkpoints_lost"])) if what == "saved" else set()
            lost[program["session"]] += len(absent)
            told_by_name[program["session"]] += len(named.intersection(absent))
            unexplained = [step for step in absent if not full.explains(program, done[step])]
            if unexplained:
                text = f"{where}: {len(unexplained)} lost though no disk was full: "
                yield Violation(REPORTS, f"{text}{unexplained[:4]}")
    for session, item in told.items():
        # One that was killed may have counted what it had not returned from.
        gap, least = item["missing"], lost[session] - told_by_name[session]
        if not least <= gap <= (least + cut_short[session] if lost[session] else 0):
            text = f"{least} lost, {gap} told as missing"
            yield Violation(REPORTS, f"{item['name']} ({session}): {text}")
        if item["media_lost"] or item["missing_bytes"]:
            text = f"{item['media_lost']} media and {item['missing_bytes']} bytes of the log"
            yield Violation(REPORTS, f"{item['name']} ({session}): {text} are lost")


def _lines(program: Record, item: Record, more: int) -> Iterator[Violation]:
    """A line that a full disk does not take is the program's own to write again: there is no gap."""
    said, done = item["lines"].get(_replica(program), []), program["printed"]
    where = f"{item['name']} ({program['session']}) {_replica(program)}, lines"
    if said != list(range(len(said))):
        yield Violation(REPORTS, f"{where}: not once and in order: {_around(said)}")
    elif not len(done) <= len(said) <= len(done) + more:
        yield Violation(REPORTS, f"{where}: {len(done)} done, {len(said)} told")


def _kept(program: Record, item: Record) -> dict[str, list[int]]:
    """The steps that the platform tells of one program, by what it did there."""
    replica, first = _replica(program), f"{program['attempt']}.0"
    return {
        "reported": item["reports"].get(replica, []),
        "shown": item["media"].get(replica, []),
        # They are the session's, and only single programs save.
        "saved": sorted(map(int, item["checkpoints"])) if replica == first else [],
    }


def _replica(program: Record) -> str:
    return f"{program['attempt']}.{program['rank']}"


@dataclass(frozen=True, slots=True)
class _FullDisks:
    """When the disk of which node was full, in nanoseconds, and where replicas ran."""

    spans: dict[str, list[tuple[int, int]]]
    nodes: dict[tuple[str, int, int], str]

    @classmethod
    def of(cls, recorded: Recorded) -> _FullDisks:
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        began: dict[str, int] = {}
        for fault in recorded.faults:
            if fault.get("began") == DISK:
                began[fault["parts"][0]] = fault["at"]
            elif fault.get("healed") == DISK:
                part = fault["parts"][0]
                spans[part].append((began.pop(part), fault["at"] + _FULL_FOR_NS))
        nodes = {
            (replica["session"], replica["attempt"], replica["rank"]): change["key"][6:]
            for change in recorded.store
            if change["key"].startswith("alloc/") and change["value"]
            for replica in change["value"]["replicas"]
        }
        return cls(dict(spans), nodes)

    def kept_from_starting(self, programs: Iterable[Record], session: str) -> bool:
        """Whether a replica of a session never began on a node whose disk was full at some time."""
        begun = {(one["session"], one["attempt"], one["rank"]) for one in programs}
        return any(
            replica[0] == session and replica not in begun and node in self.spans
            for replica, node in self.nodes.items()
        )

    def explains(self, program: Record, at: int) -> bool:
        """Whether what the program did then may have found no room."""
        node = self.nodes.get((program["session"], program["attempt"], program["rank"]), "")
        return any(begin <= at <= end for begin, end in self.spans.get(node, []))


def _followed(operations: Iterable[Record], programs: Iterable[Record]) -> Iterator[Violation]:
    """Who followed a log was given each line once and in order, and all of them at its end."""
    printed = {
        program["session"]: program
        for program in programs
        if program["attempt"] == 1 and program["rank"] == 0
    }
    for record in operations:
        if record.get("saw") != "log":
            continue
        lines, who = record["lines"], f"{record['client']} of {record['session']}"
        program = printed.get(record["session"])
        if lines != list(range(len(lines))):
            yield Violation(REPORTS, f"{who}: not once and in order: {_around(lines)}")
        elif record["whole"] and program and len(lines) < len(program["printed"]):
            yield Violation(REPORTS, f"{who}: {len(program['printed'])} printed, {len(lines)} seen")


def _around(steps: Sequence[int]) -> str:
    """What stands where the order breaks."""
    at = next((n for n, step in enumerate(steps) if n != step), len(steps))
    return f"at {at}: {list(steps[max(0, at - 2) : at + 4])}"


# The store


def _stale(store: Iterable[Record]) -> Iterator[Violation]:
    """Whoever decided held the leader's key at that revision, and no term ever goes back."""
    leading, highest = 0, 0
    for change in store:
        key, value, revision = change["key"], change["value"], change["revision"]
        if key == "leader":
            leading = change["created"] if value is not None else 0
            if leading and leading < highest:
                yield Violation(STALE, f"revision {revision}: term {leading} after {highest}")
            highest = max(highest, leading)
            continue
        if not value or not key.startswith(("alloc/", "session/")):
            continue
        term = value["term"]
        if key.startswith("alloc/") and not term:
            yield Violation(STALE, f"revision {revision}: {key} was written by no leader")
        elif term and term != leading:
            who = f"term {leading}" if leading else "nobody"
            text = f"revision {revision}: {key} was written in term {term} while {who} led"
            yield Violation(STALE, text)


def _held_twice(store: Iterable[Record]) -> Iterator[Violation]:
    """At no revision has a device too much, or a replica two places."""
    nodes: dict[str, list[Record]] = {}
    step: list[Record] = []
    for change in [*store, None]:
        if step and (change is None or change["revision"] != step[0]["revision"]):
            for part in step:
                nodes[part["key"]] = part["value"]["replicas"] if part["value"] else []
            yield from _overheld(nodes, step[0]["revision"])
            step = []
        if change is not None and change["key"].startswith("alloc/"):
            step.append(change)


def _overheld(nodes: dict[str, list[Record]], revision: int) -> Iterator[Violation]:
    held: Counter[str] = Counter()
    places: Counter[tuple[str, int]] = Counter()
    attempts: dict[str, set[int]] = defaultdict(set)
    for replicas in nodes.values():
        for replica in replicas:
            held.update(replica["devices"])
            places[replica["session"], replica["rank"]] += 1
            attempts[replica["session"]].add(replica["attempt"])
    for device, share in held.items():
        if share > _WHOLE:
            yield Violation(TWICE, f"revision {revision}: {device} is given {share}/{_WHOLE}")
    for (session, rank), count in places.items():
        if count > 1:
            yield Violation(
                TWICE, f"revision {revision}: {session} rank {rank} is in {count} places"
            )
    for session, numbers in attempts.items():
        if len(numbers) > 1:
            yield Violation(TWICE, f"revision {revision}: {session} has attempts {sorted(numbers)}")


# What was seen


def _changed(recorded: Recorded) -> Iterator[Violation]:
    """A session has one end, whoever tells it, and never leaves it."""
    ends: dict[str, dict[str, str]] = defaultdict(dict)
    for where, session, state in _states_told(recorded):
        if state in ENDED:
            ends[session].setdefault(state, where)
    for session, told in ends.items():
        if len(told) > 1:
            text = "; ".join(f"{state} by {where}" for state, where in told.items())
            yield Violation(CHANGED, f"{session}: {text}")
    last: dict[str, str] = {}
    attempts: dict[str, int] = {}
    for change in recorded.store:
        key, value = change["key"], change["value"]
        if not key.startswith("session/") or not value:
            continue
        if last.get(key) in ENDED and value["state"] != last[key]:
            text = f"revision {change['revision']}: {key} from {last[key]} to {value['state']}"
            yield Violation(CHANGED, text)
        if value["attempt"] < attempts.get(key, 0):
            text = f"revision {change['revision']}: {key} back to attempt {value['attempt']}"
            yield Violation(CHANGED, text)
        last[key], attempts[key] = value["state"], value["attempt"]


def _states_told(recorded: Recorded) -> Iterator[tuple[str, str, str]]:
    for record in recorded.operations:
        where = f"{record.get('client', 'an answer')} at {record['at']}"
        if "state" in record:
            yield where, record["session"], record["state"]
        for session, state in record.get("states", {}).items():
            yield where, session, state
    for change in recorded.store:
        if change["key"].startswith("session/") and change["value"]:
            session = change["key"].removeprefix("session/")
            yield f"revision {change['revision']}", session, change["value"]["state"]
    for item in recorded.outcome:
        yield "the outcome", item["session"], item["state"]


def _backwards(operations: Iterable[Record]) -> Iterator[Violation]:
    """What one client sees of the whole never grows older."""
    asked: dict[int, tuple[str, str]] = {}
    seen: dict[tuple[str, str], int] = {}
    for record in operations:
        if "do" in record:
            asked[record["op"]] = record["client"], record["do"]
        if "revision" not in record:
            continue
        who = asked[record["ok"]] if "ok" in record else (record["client"], record["saw"])
        revision = record["revision"]
        if revision < seen.get(who, 0):
            text = f"{who[0]} ({who[1]}) at {record['at']}: {revision} after {seen[who]}"
            yield Violation(BACKWARDS, text)
        seen[who] = max(revision, seen.get(who, 0))


# The end


def _left(recorded: Recorded) -> Iterator[Violation]:
    """All has ended: no device is given, no program runs."""
    nodes: dict[str, list[Any]] = {}
    for change in recorded.store:
        if change["key"].startswith("alloc/"):
            nodes[change["key"]] = change["value"]["replicas"] if change["value"] else []
    for node, replicas in nodes.items():
        for replica in replicas:
            yield Violation(LEFT, f"{node} holds {replica['session']} at the end")
    for program in recorded.run.get("left", []):
        yield Violation(LEFT, f"a program runs at the end: {program}")


def _unproved(recorded: Recorded) -> Iterator[Violation]:
    """A run without faults, or without anything that they could have harmed, shows nothing."""
    if not any("healed" in record for record in recorded.faults):
        yield Violation(UNPROVED, "no fault fired")
    fired = {record["healed"] for record in recorded.faults if "healed" in record}
    for name in recorded.run["faults"]:
        if name not in fired:
            yield Violation(UNPROVED, f"the fault {name} never fired")
    if not any(program["reported"] for program in recorded.programs):
        yield Violation(UNPROVED, "no program reported anything")
