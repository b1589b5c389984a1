"""Changes to running programs, as one node passes them on: what the control plane wants, and what processes say of it.

Nothing is decided here, and nothing kept: the control plane says what it wants with each orders, and processes say
where they are whenever they are called. User code is behind what they say: it is cut to sizes, and believed for its own
session alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nsml.spec import knobs
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PHASES: Final = {
    sessions.PROGRAM_CHANGE_PHASE_ASK: "ask",
    sessions.PROGRAM_CHANGE_PHASE_PREPARE: "prepare",
    sessions.PROGRAM_CHANGE_PHASE_COMMIT: "commit",
}
_KINDS: Final = {
    sessions.PROGRAM_CHANGE_KIND_SET: "set",
    sessions.PROGRAM_CHANGE_KIND_PAUSE: "pause",
    sessions.PROGRAM_CHANGE_KIND_CONTINUE: "continue",
    sessions.PROGRAM_CHANGE_KIND_LOAD: "load",
}
_STATES: Final = {
    "asked": sessions.MEMBER_STATE_ASKED,
    "refused": sessions.MEMBER_STATE_REFUSED,
    "prepared": sessions.MEMBER_STATE_PREPARED,
    "late": sessions.MEMBER_STATE_LATE,
    "waiting": sessions.MEMBER_STATE_WAITING,
    "applied": sessions.MEMBER_STATE_APPLIED,
    "done": sessions.MEMBER_STATE_DONE,
    "missed": sessions.MEMBER_STATE_MISSED,
    "failed": sessions.MEMBER_STATE_FAILED,
}

_ENDED: Final = frozenset(_STATES[one] for one in ("refused", "done", "missed", "failed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the control plane wants of one replica's programs: the change now, and what was set before."""

    change: sessions.ProgramChange | None = None
    made: Sequence[sessions.ProgramChange] = ()


def wanted_of(assignment: pb.Assignment) -> Wanted:
    """What is wanted of a replica; copies, which keep nothing else of its orders in memory."""
    change = _copy(assignment.change) if assignment.HasField("change") else None
    return Wanted(change=change, made=tuple(map(_copy, assignment.made)))


def _copy(change: sessions.ProgramChange) -> sessions.ProgramChange:
    kept = sessions.ProgramChange()
    kept.CopyFrom(change)
    return kept


@dataclass(slots=True)
class ReplicaChanges:
    """The change of one replica's programs.

    Attributes:
        tell: called when they say another thing.
        call: has them come.
        keep: writes down, before that, what processes that are started anew begin with.
    """

    tell: Callable[[], None]
    call: Callable[[], None] = lambda: None
    keep: Callable[[str], None] = lambda _: None
    is_known: bool = False
    """Whether the control plane has said what it wants: until then nothing is wanted anew, nor over."""
    _wanted: dict[str, Any] | None = None
    _made: str = "[]"
    _members: dict[int, pb.MemberReport] = field(default_factory=dict)
    _is_there: dict[int, Callable[[], bool]] = field(default_factory=dict)

    def want(self, now: Wanted) -> None:
        """What the control plane wants now."""
        wanted = None if now.change is None else _as_json(now.change)
        made = json.dumps([value for change in now.made for value in _values_of(change)])
        self.is_known = True
        is_news = (wanted, made) != (self._wanted, self._made)
        if made != self._made:
            self.keep(made)
        self._wanted, self._made = wanted, made
        if is_news:
            self.call()

    @property
    def wanted(self) -> Mapping[str, Any] | None:
        """The same as programs read it."""
        return self._wanted

    @property
    def members(self) -> tuple[pb.MemberReport, ...]:
        """What each process said last, by local rank."""
        return tuple(self._members[one] for one in sorted(self._members))

    @property
    def is_settled(self) -> bool:
        """Whether every process has said all that it can say of it now."""
        if self._wanted is None:
            return True
        members = list(self._members.values())
        if len(members) < max([1, *(one.world for one in members)]):
            return False
        return all(_has_answered(one, self._wanted) for one in members)

    def hear(self, said: Mapping[str, Any], is_there: Callable[[], bool] = lambda: True) -> bool:
        """Take what a process says; False if another one has its place: of those with one local rank the first.

        `is_there` says whether the process lives. Who comes for the place of one that ended, as launchers start
        all anew after one has failed, gets it, and all that ended are forgotten.
        """
        report = _member(said)
        known = self._members.get(report.local_rank)
        if known is not None and known.process != report.process:
            self._forget_ended(report.local_rank)
            known = self._members.get(report.local_rank)
        if known is not None and known.process != report.process:
            return False
        if known is None and len(self._members) >= knobs.MOST_PROCESSES:
            return False
        if known is None:
            self._is_there[report.local_rank] = is_there
        if known != report:
            self._members[report.local_rank] = report
            self.tell()
        return True

    def note_ended(self) -> None:
        """Have processes that ended say nothing more of what is decided, where they had not made it."""
        wanted = self._wanted
        if wanted is None or wanted["phase"] != "commit":
            return
        for rank, said in tuple(self._members.items()):
            if _has_answered(said, wanted) or self._is_there[rank]():
                continue
            # Another message: what was told last is compared with it.
            report = self._members[rank] = pb.MemberReport()
            report.CopyFrom(said)
            report.number, report.counter = wanted["number"], wanted["counter"]
            report.state, report.reason = sessions.MEMBER_STATE_MISSED, "its process has ended"
            self.tell()

    def _forget_ended(self, local_rank: int) -> None:
        """Forget the processes that ended, if that which has this place did."""
        if self._is_there[local_rank]():
            return
        for one in [one for one, is_there in self._is_there.items() if not is_there()]:
            del self._members[one], self._is_there[one]


def _as_json(change: sessions.ProgramChange) -> dict[str, Any] | None:
    """A change as programs read it; None for one that this version cannot pass on, or that is over."""
    phase, kind = _PHASES.get(change.phase), _KINDS.get(change.kind)
    if phase is None or kind is None:
        return None
    return {
        "number": change.number,
        "phase": phase,
        "kind": kind,
        "counter": change.counter,
        "at": change.at if change.HasField("at") else None,
        "values": {name: json.loads(value) for name, value in sorted(change.values.items())},
        "checkpoint": change.checkpoint,
        "session": change.checkpoint_session,
        "limit_s": change.limit.ToNanoseconds() / 1e9,
        "by": change.asked_by,
    }


def _values_of(change: sessions.ProgramChange) -> Iterator[dict[str, Any]]:
    """What a change has set, as `nsml/_presets.py` reads it."""
    for name, value in sorted(change.values.items()):
        yield {
            "name": name,
            "value": json.loads(value),
            "counter": change.counter,
            "at": change.at if change.HasField("at") else None,
            "number": change.number,
        }


def _has_answered(member: pb.MemberReport, wanted: Mapping[str, Any]) -> bool:
    if member.number != wanted["number"] or not member.state:
        return False
    if wanted["phase"] == "ask":
        return True
    at = member.at if member.HasField("at") else None
    if wanted["phase"] == "prepare":
        return (member.counter, at) == (wanted["counter"], wanted["at"])
    if member.state == sessions.MEMBER_STATE_APPLIED:
        return wanted["kind"] in {"pause", "continue"} or member.is_paused
    return member.state in _ENDED


def _member(said: Mapping[str, Any]) -> pb.MemberReport:
    """What a process says, as far as it makes sense."""
    known = _object(said.get("known"))
    report = pb.MemberReport(
        local_rank=_number(said.get("local_rank"), most=knobs.MOST_PROCESSES - 1),
        process=_text(said.get("process"), knobs.MOST_SAID_CHARS),
        world=max(_number(said.get("local_world_size"), most=knobs.MOST_PROCESSES), 1),
        number=_number(known.get("number")),
        state=_STATES.get(
            _text(known.get("is"), knobs.MOST_SAID_CHARS), sessions.MEMBER_STATE_UNKNOWN
        ),
        counter=_text(known.get("counter"), knobs.MOST_SAID_CHARS),
        counters=_by_counter(said.get("counters"), int),
        step_s=_by_counter(said.get("step_s"), float),
        is_paused=said.get("is_paused") is True,
        reason=_text(known.get("reason"), knobs.MOST_REASON_CHARS),
    )
    if _is_number(known.get("at")):
        report.at = _number(known["at"])
    if _is_number(known.get("position")):
        report.position = _number(known["position"])
    for name, values in list(_object(known.get("values")).items())[: knobs.MOST_AT_ONCE]:
        given: list[Any] = values if isinstance(values, list) else []
        before, after, in_force = (given + 3 * [None])[:3]
        report.knobs.add(
            name=_text(name, knobs.MOST_SAID_CHARS),
            before=_value(before),
            after=_value(after),
            in_force=_value(in_force),
        )
    return report


def _by_counter(given: Any, kind: type[int | float]) -> dict[str, Any]:
    found = {name: value for name, value in _object(given).items() if name in knobs.COUNTERS}
    if kind is int:
        return {name: _number(value) for name, value in found.items() if _is_number(value)}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and _is_span(value)
    }


def _is_span(value: float) -> bool:
    return math.isfinite(value) and 0 < value < knobs.MOST_STEP


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any, *, most: int = knobs.MOST_STEP) -> int:
    return min(max(value, 0), most) if _is_number(value) else 0


def _text(value: Any, most: int) -> str:
    """Of a text its beginning, without halves of characters; "" for anything else."""
    if not isinstance(value, str):
        return ""
    return value[:most].encode("utf-8", "replace").decode()


def _value(value: Any) -> str:
    """A value of a knob as JSON; "" for what is none."""
    if not isinstance(value, (bool, int, float, str)):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, int) and abs(value) > knobs.MOST_STEP:
        return ""
    text = json.dumps(_text(value, knobs.MOST_SAID_CHARS) if isinstance(value, str) else value)
    return text if len(text) <= knobs.MOST_SAID_CHARS else ""
