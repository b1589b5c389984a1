"""Knobs of a session as rows and lines: values, limits, and the last changes. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml.common.text import visible
from nsml.common.units import ago
from nsml.v1 import sessions_pb2 as pb
from nsml.view.program_changes import MADE, line, phase_word, results, step_text, value_word
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LIMITS: Final = ("min", "max", "choices")
_NAME_CELLS, _LIMITS_CELLS, _VALUE_CELLS = 12, 12, 12


class Knob(NamedTuple):
    """A knob as reported by its program, and its last change.

    Attributes:
        facts: value, default, min, max and choices; empty if not reported.
        given: the last set value in JSON; "" if none.
        change: the last change in the running program; None: none.
    """

    name: str
    facts: Mapping[str, Any]
    given: str
    change: pb.ProgramChange | None

    @property
    def value(self) -> str:
        """The reported value; else the last set one."""
        return _word(self.facts["value"]) if "value" in self.facts else value_word(self.given)


def rows(session: pb.Session, found: Mapping[str, Mapping[str, Any]]) -> list[Knob]:
    """Return the reported knobs, then others that were set by name.

    Args:
        session: the session.
        found: the program's report on its knobs; empty if there is none.
    """
    given = {one.name: one.value for one in session.spec.knobs}
    made: dict[str, pb.ProgramChange] = {}
    for change in session.changes:
        if change.kind == pb.PROGRAM_CHANGE_KIND_SET and change.phase in MADE:
            given.update(change.values)
            made.update(dict.fromkeys(change.values, change))
    names = dict.fromkeys((*found, *sorted(given)))
    return [Knob(name, found.get(name, {}), given.get(name, ""), made.get(name)) for name in names]


def limits_text(facts: Mapping[str, Any]) -> str:
    """Describe the limits of its values: `min 0, max 1`."""
    known = ((word, facts.get(word)) for word in _LIMITS)
    return ", ".join(f"{word} {_text(value)}" for word, value in known if value is not None)


def _short_limits(facts: Mapping[str, Any]) -> str:
    """Return the same for a cell: `0 to 1`."""
    low, high = facts.get("min"), facts.get("max")
    if low is not None and high is not None:
        return f"{_word(low)} to {_word(high)}"
    return limits_text({**facts, "choices": None}) or _text(facts.get("choices") or [])


def knob_line(knob: Knob) -> str:
    """Return name, value, limits and default in one line."""
    default = knob.facts.get("default")
    parts = [limits_text(knob.facts), "" if default is None else f"default {_word(default)}"]
    beside = ", ".join(filter(None, parts))
    return f"{visible(knob.name)} = {knob.value}" + (f"  ({beside})" if beside else "")


def history_line(change: pb.ProgramChange, now: float) -> str:
    """Return a change with its number and age."""
    return f"#{change.number}  {line(change)}, {ago(now - seconds_of(change.asked_at))}"


def history_lines(changes: Sequence[pb.ProgramChange], now: float) -> list[str]:
    """Return all changes, newest first, each with its results indented below."""
    return [
        text
        for change in reversed(changes)
        for text in (history_line(change, now), *(f"    {one}" for one in results(change)))
    ]


def _set_text(knob: Knob) -> str:
    if knob.change is None:
        return "at the start" if knob.given else ""
    divided = "DIVIDED" if knob.change.phase == pb.PROGRAM_CHANGE_PHASE_DIVIDED else ""
    return " ".join(filter(None, (divided, step_text(knob.change)))) or phase_word(knob.change)


def _ago_text(knob: Knob, now: float) -> str:
    return "" if knob.change is None else ago(now - seconds_of(knob.change.asked_at))


def _word(value: Any) -> str:
    """Return a value as it is typed; `?` for other types. It comes from user code."""
    return value_word(json.dumps(value)) if isinstance(value, (str, int, float)) else "?"


def _text(value: Any) -> str:
    return "/".join(map(_word, value)) if isinstance(value, list) else _word(value)


COLUMNS: Final[tuple[Column[Knob], ...]] = (
    Column(
        key="name",
        title="Knob",
        cell=lambda k, _: visible(k.name),
        is_name=True,
        shrinks_to=_NAME_CELLS,
    ),
    Column(key="value", title="Value", cell=lambda k, _: k.value, shrinks_to=_VALUE_CELLS),
    Column(
        key="limits",
        title="Limits",
        cell=lambda k, _: _short_limits(k.facts),
        shrinks_to=_LIMITS_CELLS,
    ),
    Column(
        key="default",
        title="Default",
        cell=lambda k, _: "" if k.facts.get("default") is None else _word(k.facts["default"]),
        shrinks_to=_VALUE_CELLS,
        is_optional=True,
    ),
    Column(key="set", title="Set at", cell=lambda k, _: _set_text(k)),
    Column(
        key="by",
        title="By",
        cell=lambda k, _: visible(k.change.asked_by) if k.change else "",
        is_name=True,
    ),
    Column(key="ago", title="Ago", cell=_ago_text, is_optional=True),
)
