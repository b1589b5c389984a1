"""Changes to running programs on one node: forwards orders of the control plane, and reports of processes.

Nothing is decided or stored here: the control plane sends its wanted state with each orders, and processes report
their state whenever called. Reports come from user code: they are truncated, and trusted for their own
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
    """The wanted state of one replica's programs: the current change, and earlier ones."""

    change: sessions.ProgramChange | None = None
    made: Sequence[sessions.ProgramChange] = ()


def wanted_of(assignment: pb.Assignment) -> Wanted:
    """Return the wanted changes of a replica, as copies, so that the rest of its orders is freed."""
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
        tell: called when a report changes.
        call: calls its processes.
        keep: called before that with the values for restarted processes.
    """

    tell: Callable[[], None]
    call: Callable[[], None] = lambda: None
    keep: Callable[[str], None] = lambda _: None
    is_known: bool = False
    """Whether the control plane has sent its wanted state: until then nothing begins or ends."""
    _wanted: dict[str, Any] | None = None
    _made: str = "[]"
    _members: dict[int, pb.MemberReport] = field(default_factory=dict)
    _is_there: dict[int, Callable[[], bool]] = field(default_factory=dict)

    def want(self, now: Wanted) -> None:
        """Set the wanted state."""
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
        """The wanted change, as programs read it."""
        return self._wanted

    @property
    def members(self) -> tuple[pb.MemberReport, ...]:
        """The last report of each process, by local rank."""
        return tuple(self._members[one] for one in sorted(self._members))

    @property
    def is_settled(self) -> bool:
        """Whether every process has reported all that it can now."""
        if self._wanted is None:
            return True
        members = list(self._members.values())
        if len(members) < max([1, *(one.world for one in members)]):
            return False
        return all(_has_answered(one, self._wanted) for one in members)

    def hear(self, said: Mapping[str, Any], is_there: Callable[[], bool] = lambda: True) -> bool:
        """Store a report; False if another process has its place: the first one of a local rank.

        `is_there` returns whether the process lives. If the first has ended, as when a launcher restarts
        all processes, the new one replaces it, and all ended processes are forgotten.
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
        """Report processes as ended that had not made the committed change."""
        wanted = self._wanted
        if wanted is None or wanted["phase"] != "commit":
            return
        for rank, said in tuple(self._members.items()):
            if _has_answered(said, wanted) or self._is_there[rank]():
                continue
            # A new message, since the previous one is compared with it.
            report = self._members[rank] = pb.MemberReport()
            report.CopyFrom(said)
            report.number, report.counter = wanted["number"], wanted["counter"]
            report.state, report.reason = sessions.MEMBER_STATE_MISSED, "its process has ended"
            self.tell()

    def _forget_ended(self, local_rank: int) -> None:
        """Forget all ended processes, if the one in this place has ended."""
        if self._is_there[local_rank]():
            return
        for one in [one for one, is_there in self._is_there.items() if not is_there()]:
            del self._members[one], self._is_there[one]


def _as_json(change: sessions.ProgramChange) -> dict[str, Any] | None:
    """Return a change as programs read it; None if it is over, or unsupported by this version."""
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
    """Yield the values of a change, as `nsml/_presets.py` reads them."""
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
    """Parse a report, dropping what is invalid."""
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
    """Truncate a text, without half characters; "" for anything else."""
    if not isinstance(value, str):
        return ""
    return value[:most].encode("utf-8", "replace").decode()


def _value(value: Any) -> str:
    """Return a knob's value as JSON; "" if invalid."""
    if not isinstance(value, (bool, int, float, str)):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, int) and abs(value) > knobs.MOST_STEP:
        return ""
    text = json.dumps(_text(value, knobs.MOST_SAID_CHARS) if isinstance(value, str) else value)
    return text if len(text) <= knobs.MOST_SAID_CHARS else ""
