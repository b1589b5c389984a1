"""Every pair of a dataclass and a message that is converted by a compiled codec."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import assume, given
from hypothesis import strategies as st

import controlplane
from controlplane import codec as compiled
from controlplane.codec import Codec, Convert, codec
from controlplane.domain.cluster import Cluster
from controlplane.domain.conditions import Condition
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import (
    Device,
    EndedAttempt,
    HeldCause,
    Node,
    Resources,
    SecretUse,
    Session,
    SessionSpec,
    Usage,
)
from controlplane.history.values import Media
from controlplane.stored.v1 import records_pb2 as pb

ROOT = Path(controlplane.__file__).parent
for path in sorted(ROOT.rglob("*.py")):
    if "from controlplane.codec import" in path.read_text():
        import_module(".".join(("controlplane", *path.relative_to(ROOT).with_suffix("").parts)))


def _name(pair: tuple[type, Any]) -> tuple[str, str]:
    kind, message = pair
    return kind.__qualname__, message.DESCRIPTOR.full_name


# In an order of their own: in which they were made depends on what was imported before.
MADE = {pair: compiled._made[pair] for pair in sorted(compiled._made, key=_name)}
PAIRS = {pair: one for pair, one in MADE.items() if isinstance(one, Codec)}
ENCODERS = {pair: one for pair, one in MADE.items() if pair not in PAIRS}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
INTEGERS = {
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_SINT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
}
TIMES = st.integers(0, 1 << 32).map(lambda number: number / 4)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: INTEGERS[FieldDescriptor.TYPE_UINT32],
    float: st.floats(allow_nan=False),
    str: TEXTS,
    bytes: st.binary(max_size=5),
    bool: st.booleans(),
    type(None): st.none(),
}
EXCEPTIONS: dict[Any, dict[str, st.SearchStrategy[Any]]] = {
    Condition: {"remark": st.just("")},  # not written
    Media: {
        "facts": st.dictionaries(TEXTS, TEXTS, max_size=2).map(json.dumps),
        "root": st.none() | TEXTS.filter(bool),  # unset stands for None
    },
    Usage: {
        "utilization": st.none() | st.floats(0, 100),  # below 0 stands for None
        "memory_peak": st.integers(0, 1 << 50).map(float),  # whole bytes in the contract
    },
    # Unset, these stand for something else.
    Node: {"gang_network": TEXTS.filter(bool)},
    Cluster: {
        "history": TEXTS.filter(bool),
        "objects": TEXTS.filter(bool),
        "data_version": st.integers(1, 99),
    },
}


SHOWN_BY_HAND = {
    Session: {"spec", "stop", "command", "usage", "episodes", "progress"},
    SessionSpec: {"datasets", "preemptible"},
    EndedAttempt: {"nodes"},  # each once
    Media: {"facts"},  # as JSON
}
"""Fields that do not reach their message as they are, by the callers of the encoder."""


def names_of(kind: Any) -> list[str]:
    """The fields of a dataclass, or of a named tuple."""
    return [one.name for one in fields(kind)] if is_dataclass(kind) else list(kind._fields)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, localns={"Mapping": Mapping})


@cache
def values(kind: Any, message: Any = None) -> st.SearchStrategy[Any]:
    """Any values of a dataclass that fit into the message."""
    drawn = {name: field_of(kind, name, message) for name in names_of(kind)}
    made = st.builds(kind, **drawn)
    return made.map(RULES[kind]) if kind in RULES else made


def field_of(kind: Any, name: str, message: Any) -> st.SearchStrategy[Any]:
    """Any values of one field of a dataclass."""
    own = EXCEPTIONS.get(kind, {})
    if name in own:
        return own[name]
    field = message.DESCRIPTOR.fields_by_name.get(name) if message else None
    return part(hints_of(kind)[name], field)


def with_capacity(node: Node) -> Node:
    """The GPUs of a node are not written: they are those of its devices."""
    gpus = len(node.devices) * 1000
    return replace(node, capacity=replace(node.capacity, gpu_thousandths=gpus))


def with_held_cause(session: Session) -> Session:
    """A session has a cause while it is held, and only then."""
    if session.state is not SessionState.HELD:
        return replace(session, held_cause=None)
    return replace(session, held_cause=session.held_cause or HeldCause.START_FAILURES)


RULES: dict[Any, Callable[[Any], Any]] = {Node: with_capacity, Session: with_held_cause}
"""What holds between the fields of a value."""


def part(hint: Any, field: Any) -> st.SearchStrategy[Any]:
    """Any values of one field."""
    args, origin = get_args(hint), get_origin(hint)
    if isinstance(hint, enum.EnumMeta):
        return st.sampled_from(hint)
    if is_dataclass(hint):
        inner = GetMessageClass(field.message_type) if field and field.message_type else None
        return values(hint, inner if (hint, inner) in MADE else None)
    if origin is Mapping:
        return st.dictionaries(*(part(one, None) for one in args), max_size=3)
    if origin is frozenset:
        return st.frozensets(part(args[0], field), max_size=3)
    if origin is tuple and args[-1] is ...:
        return st.lists(part(args[0], field), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(part(one, None) for one in args))
    if args:
        return st.one_of(*(part(one, field) for one in args))
    if hint is float and field and field.message_type:
        return TIMES
    if hint is float and field and field.type == FieldDescriptor.TYPE_FLOAT:
        return st.floats(allow_nan=False, width=32)
    if hint is int and field:
        return INTEGERS.get(field.type, LEAVES[int])
    return LEAVES[hint]


def named(pair: tuple[Any, Any]) -> str:
    kind, message = pair
    return f"{kind.__name__}-{message.DESCRIPTOR.full_name}"


@pytest.mark.parametrize("pair", PAIRS, ids=named)
@given(data=st.data())
def test_a_value_is_the_same_after_the_way_through_its_message(
    pair: tuple[Any, Any], data: st.DataObject
) -> None:
    value = data.draw(values(*pair))
    assert PAIRS[pair].decode(PAIRS[pair].encode(value)) == value


@pytest.mark.parametrize("pair", ENCODERS, ids=named)
@given(data=st.data())
def test_what_changes_in_a_value_changes_in_its_message(
    pair: tuple[Any, Any], data: st.DataObject
) -> None:
    kind, message = pair
    to_message = ENCODERS[pair].to_message
    shown = set(message.DESCRIPTOR.fields_by_name) - SHOWN_BY_HAND.get(kind, set())
    name = data.draw(st.sampled_from(sorted(shown.intersection(names_of(kind)))))
    first, second = data.draw(values(*pair)), data.draw(field_of(kind, name, message))
    parts = {part: getattr(first, part) for part in names_of(kind)}
    assume(parts[name] != second and is_whole(second))
    assert to_message(first) != to_message(kind(**{**parts, name: second}))


def is_whole(value: Any) -> bool:
    """Whether all of it is in its message: of dataclasses within, some fields may not be."""
    items = value if isinstance(value, (tuple, frozenset)) else (value,)
    return not any(map(is_dataclass, items))


@dataclass(frozen=True)
class Bound:
    """As BudgetRecord, but for one field."""

    gpu_seconds: float
    period_days: int


@dataclass(frozen=True)
class Whole(Bound):
    anchor: float


@dataclass(frozen=True)
class Longer(Whole):
    note: str = ""


@dataclass(frozen=True)
class Wordy(Bound):
    anchor: str


@dataclass(frozen=True)
class Unordered:
    replicas: frozenset[Device]
    boot_id: str = ""
    asked_by: str = ""
    reason: str = ""
    asked_at: float = 0.0


@pytest.mark.parametrize(
    ("kind", "message", "why"),
    [
        (Bound, pb.BudgetRecord, "the dataclass has no anchor"),
        (Longer, pb.BudgetRecord, "the message has no note"),
        (Wordy, pb.BudgetRecord, "anchor.*different types"),
        (Unordered, pb.FenceRecord, "replicas.*different types"),
        (Resources, pb.ResourcesRecord, "already"),
    ],
)
def test_what_does_not_agree_is_refused(kind: Any, message: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        codec(kind, message)
    assert compiled._made == MADE


@pytest.mark.parametrize(
    "exceptions",
    [
        {"rename": {"none": "x"}},
        {"convert": {"none": Convert(str, str)}},
        {"unset": {"none": 1}},
        {"omit": ("none",)},
        {"extra": ("none",)},
    ],
    ids=str,
)
def test_exceptions_are_of_fields_that_there_are(exceptions: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="neither has none"):
        codec(Whole, pb.BudgetRecord, **exceptions)


def test_a_value_of_an_enumeration_that_nobody_knows_is_refused() -> None:
    attempt = PAIRS[EndedAttempt, pb.AttemptRecord]
    with pytest.raises(ValueError, match="LATER"):
        attempt.decode(pb.AttemptRecord(cause="LATER").SerializeToString())


def test_a_traceback_shows_the_line_that_was_made() -> None:
    wrong: Any = SecretUse(name="n", variable=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError) as raised:
        PAIRS[SecretUse, pb.SecretUseRecord].encode(wrong)
    assert "m.variable = x" in str(raised.getrepr())
