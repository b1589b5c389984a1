"""Every pair of a dataclass and a message that is converted by a compiled codec."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

import controlplane
from controlplane.codec import Codec, codec, made
from controlplane.domain.cluster import Cluster
from controlplane.domain.conditions import Condition
from controlplane.domain.values import Device, EndedAttempt, Node, Resources, SecretUse, Usage
from controlplane.stored.v1 import records_pb2 as pb

ROOT = Path(controlplane.__file__).parent
for path in sorted(ROOT.rglob("*.py")):
    if "from controlplane.codec import" in path.read_text():
        import_module(".".join(("controlplane", *path.relative_to(ROOT).with_suffix("").parts)))

PAIRS = {(one.kind, one.message): one for one in made() if isinstance(one, Codec)}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
INTEGERS = {
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_SINT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
}
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
    Usage: {"utilization": st.none() | st.floats(0, 100)},  # below 0 stands for None
    # Unset, these stand for something else.
    Node: {"gang_network": TEXTS.filter(bool)},
    Cluster: {
        "history": TEXTS.filter(bool),
        "objects": TEXTS.filter(bool),
        "data_version": st.integers(1, 99),
    },
}


def values(kind: Any, message: Any = None) -> st.SearchStrategy[Any]:
    """Any values of a dataclass that fit into the message."""
    hints = get_type_hints(kind, localns={"Mapping": Mapping})
    there = message.DESCRIPTOR.fields_by_name if message else {}
    own = EXCEPTIONS.get(kind, {})
    drawn = {
        name: own[name] if name in own else part(hints[name], there.get(name))
        for name in (one.name for one in fields(kind))
    }
    made = st.builds(kind, **drawn)
    return made.map(with_capacity) if kind is Node else made


def with_capacity(node: Node) -> Node:
    """The GPUs of a node are not written: they are those of its devices."""
    gpus = len(node.devices) * 1000
    return replace(node, capacity=replace(node.capacity, gpu_thousandths=gpus))


def part(hint: Any, field: Any) -> st.SearchStrategy[Any]:
    """Any values of one field."""
    args, origin = get_args(hint), get_origin(hint)
    if isinstance(hint, enum.EnumMeta):
        return st.sampled_from(hint)
    if is_dataclass(hint):
        inner = GetMessageClass(field.message_type) if field and field.message_type else None
        return values(hint, inner if (hint, inner) in PAIRS else None)
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
    if hint is int and field:
        return INTEGERS.get(field.type, LEAVES[int])
    return LEAVES[hint]


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=f"{kind.__name__}-{to.__name__}") for (kind, to), one in PAIRS.items()],
)
@given(data=st.data())
def test_a_value_is_the_same_after_the_way_through_its_message(
    one: Codec[Any, Any], data: st.DataObject
) -> None:
    value = data.draw(values(one.kind, one.message))
    assert one.decode(one.encode(value)) == value


@dataclass(frozen=True)
class Bound:
    """As BudgetRecord, but for one field."""

    gpu_seconds: float
    period_days: int


@dataclass(frozen=True)
class Longer(Bound):
    anchor: float
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
    assert (kind, message) not in {(one.kind, one.message) for one in made()} - set(PAIRS)


def test_a_value_of_an_enumeration_that_nobody_knows_is_refused() -> None:
    attempt = PAIRS[EndedAttempt, pb.AttemptRecord]
    with pytest.raises(ValueError, match="LATER"):
        attempt.decode(pb.AttemptRecord(cause="LATER").SerializeToString())


def test_a_traceback_shows_the_line_that_was_made() -> None:
    wrong: Any = SecretUse(name="n", variable=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError) as raised:
        PAIRS[SecretUse, pb.SecretUseRecord].encode(wrong)
    assert "m.variable = x" in str(raised.getrepr())
