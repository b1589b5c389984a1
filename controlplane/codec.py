"""Dataclasses to protobuf messages and back, compiled once for each pair.

As `dataclasses` does, a codec writes the source of its functions and compiles it: the code that one would write by hand, and as fast.
A field of one side without a counterpart on the other, or with one of another type, is an error where the codec is made: neither side
grows a field that is silently dropped.
"""

from __future__ import annotations

import enum
import linecache
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from types import MappingProxyType, NoneType
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

T = TypeVar("T")
M = TypeVar("M", bound=Message)
_Field: TypeAlias = Any
"""A `FieldDescriptor`, whose class each implementation of protobuf has of its own."""

_INTEGERS: Final = frozenset(
    getattr(FieldDescriptor, f"TYPE_{name}")
    for name in ("INT32", "INT64", "UINT32", "UINT64", "SINT32", "SINT64")
)
_SCALARS: Final[Mapping[Any, frozenset[int]]] = {
    int: _INTEGERS,
    float: frozenset({FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}),
    str: frozenset({FieldDescriptor.TYPE_STRING}),
    bytes: frozenset({FieldDescriptor.TYPE_BYTES}),
    bool: frozenset({FieldDescriptor.TYPE_BOOL}),
}
_TYPING_NAMES: Final = {"Mapping": Mapping}
"""In annotations, of modules that import them for type checkers only."""


class Convert(NamedTuple):
    """How one field is converted by hand.

    Attributes:
        encode: from the dataclass's field to what the message's field is set to; None leaves that unset.
        decode: back, from the message's field.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Spread(NamedTuple):
    """How a field of a dataclass is converted that is not exactly one field of the message.

    Attributes:
        fields: those of the message that it takes.
        encode: sets them, given the dataclass and the message.
        decode: from the message to the dataclass's field.
    """

    fields: tuple[str, ...]
    encode: Callable[[Any, Any], None]
    decode: Callable[[Any], Any]


class Codec(NamedTuple, Generic[T, M]):
    """Converts between a dataclass and a message; `codec` makes it.

    Attributes:
        fill: sets the fields of an empty message.
        from_message: the value that a message describes.
    """

    kind: type[T]
    message: type[M]
    fill: Callable[[T, M], None]
    from_message: Callable[[M], T]

    def to_message(self, value: T) -> M:
        """The message that describes a value."""
        message = self.message()
        self.fill(value, message)
        return message

    def encode(self, value: T) -> bytes:
        """A value as bytes."""
        return self.to_message(value).SerializeToString()

    def decode(self, data: bytes) -> T:
        """The value in bytes.

        Raises:
            ValueError: they are no such message, or a value of an enumeration is unknown.
        """
        try:
            return self.from_message(self.message.FromString(data))
        except DecodeError as error:
            raise ValueError(str(error)) from error


_codecs: Final[dict[tuple[type, type], Codec[Any, Any]]] = {}


def codecs() -> tuple[Codec[Any, Any], ...]:
    """All that were made so far."""
    return tuple(_codecs.values())


def codec(
    kind: type[T],
    message: type[M],
    *,
    rename: Mapping[str, str] | None = None,
    convert: Mapping[str, Convert] | None = None,
    spread: Mapping[str, Spread] | None = None,
    unset: Mapping[str, Any] | None = None,
    extra: Collection[str] = (),
    omit: Collection[str] = (),
) -> Codec[T, M]:
    """Compile the codec of a dataclass and a message.

    Fields within it that are dataclasses themselves use the codec that was made for that pair, else one without exceptions.

    Args:
        kind: the dataclass.
        message: the class of the message.
        rename: fields of the message by those of the dataclass, where they differ.
        convert: conversions by hand, by field of the dataclass.
        spread: the same, where that is not exactly one field of the message.
        unset: what fields stand for that are unset, as older versions left them.
        extra: fields of the message that are not of the dataclass: the caller sets them.
        omit: fields of the dataclass that are not of the message: they are read as their defaults.

    Raises:
        TypeError: the two do not agree, or have a codec already.
    """
    if (kind, message) in _codecs:
        raise TypeError(f"{kind.__name__} and {message.__name__} have a codec already")
    writing = _Writing(kind, message)
    rename, convert, spread, unset = rename or {}, convert or {}, spread or {}, unset or {}
    there = message.DESCRIPTOR.fields_by_name
    left = set(there) - set(extra)
    hints = get_type_hints(kind, localns=_TYPING_NAMES)
    for field in fields(kind):  # type: ignore[arg-type]  # a type variable cannot be bound to dataclasses
        name = field.name
        if name in omit:
            continue
        if name in spread:
            writing.by_hand(name, spread[name])
            left.difference_update(spread[name].fields)
            continue
        other = rename.get(name, name)
        if other not in left:
            raise TypeError(f"{message.__name__} has no field for {kind.__name__}.{name}")
        left.remove(other)
        if name in convert:
            writing.converted(name, there[other], convert[name])
        else:
            writing.field(name, there[other], hints[name], unset.get(name))
    if left:
        raise TypeError(f"{kind.__name__} has no fields for {sorted(left)} of {message.__name__}")
    made = Codec(kind, message, *writing.compiled())
    _codecs[kind, message] = made
    return made


def _codec_of(kind: Any, field: _Field) -> Codec[Any, Any]:
    message = GetMessageClass(field.message_type)
    return _codecs.get((kind, message)) or codec(kind, message)


class _Members(dict[Any, Any]):
    """Members of an enumeration by value: faster than to call it, and with the same error."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        super().__init__((one.value, one) for one in kind)
        self._kind = kind

    def __missing__(self, value: Any) -> Any:
        return self._kind(value)


class _Writing:
    """The source of one codec while it is written: `v` is the value, `m` the message."""

    def __init__(self, kind: type, message: type[Message]) -> None:
        self._title = f"{kind.__name__} and {message.__name__}"
        self._names: dict[str, Any] = {"Kind": kind, "view": MappingProxyType}
        self._encoding: list[str] = []
        self._decoding: list[str] = []

    def _named(self, thing: Any) -> str:
        name = f"_{len(self._names)}"
        self._names[name] = thing
        return name

    def compiled(self) -> tuple[Any, Any]:
        """The functions `fill` and `from_message`."""
        lines = [
            "def fill(v, m):",
            *(f"    {line}" for line in self._encoding or ["pass"]),
            "def from_message(m):",
            "    return Kind(",
            *(f"        {line}," for line in self._decoding),
            "    )",
        ]
        source, filename = "\n".join(lines), f"<codec of {self._title}>"
        exec(compile(source, filename, "exec"), self._names)  # noqa: S102 - made of names in our code
        # Tracebacks show its lines.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        return self._names["fill"], self._names["from_message"]

    def by_hand(self, name: str, way: Spread) -> None:
        """A field for which others stand."""
        self._encoding.append(f"{self._named(way.encode)}(v, m)")
        self._decoding.append(f"{name}={self._named(way.decode)}(m)")

    def converted(self, name: str, field: _Field, way: Convert) -> None:
        """A field with a conversion of its own."""
        at = f"m.{field.name}"
        if field.is_repeated:
            put = f"{at}.extend(x)"
        elif field.message_type:
            put = f"{at}.CopyFrom(x)"
        else:
            put = f"{at} = x"
        encode = self._named(way.encode)
        self._encoding.append(f"if (x := {encode}(v.{name})) is not None: {put}")
        self._decoding.append(f"{name}={self._named(way.decode)}({at})")

    def field(self, name: str, field: _Field, hint: Any, unset: Any) -> None:
        """A field that both have."""
        at, args = f"m.{field.name}", get_args(hint)
        is_optional = NoneType in args
        if is_optional:
            (hint,) = (one for one in args if one is not NoneType)
            args = get_args(hint)
        kind = get_origin(hint) or hint
        if field.is_repeated:
            if kind is Mapping:
                self._mapping(name, field, args)
            elif (kind is tuple and args[1:] == (...,)) or kind is frozenset:
                self._sequence(name, field, kind, args[0])
            else:
                raise self._disagree(name, field)
        elif field.message_type:
            self._message(name, field, kind, is_optional=is_optional)
        elif is_optional and field.has_presence:
            self._encoding.append(f"if (x := v.{name}) is not None: {at} = x")
            value = self._scalar(name, field, kind, at)
            self._decoding.append(f"{name}={value} if m.HasField({field.name!r}) else None")
        elif is_optional:
            # Only where no value is taken for an unset field.
            if not (isinstance(kind, enum.EnumMeta) and all(kind)):
                raise self._disagree(name, field)
            self._encoding.append(f"if x := v.{name}: {at} = x")
            value = self._scalar(name, field, kind, "x")
            self._decoding.append(f"{name}={value} if (x := {at}) else None")
        else:
            self._encoding.append(f"if x := v.{name}: {at} = x")
            or_else = f"({at} or {self._named(unset)})" if unset is not None else at
            self._decoding.append(f"{name}={self._scalar(name, field, kind, or_else)}")

    def _scalar(self, name: str, field: _Field, kind: Any, read: str) -> str:
        """How what is read becomes a value."""
        is_enum = isinstance(kind, enum.EnumMeta)
        base = next((one for one in (str, int) if is_enum and issubclass(kind, one)), kind)
        if field.type not in _SCALARS.get(base, ()):
            raise self._disagree(name, field)
        return f"{self._named(_Members(kind))}[{read}]" if is_enum else read

    def _message(self, name: str, field: _Field, kind: Any, *, is_optional: bool) -> None:
        inner, at = _codec_of(kind, field), f"m.{field.name}"
        put = f"x = {at}; x.SetInParent(); {self._named(inner.fill)}(v.{name}, x)"
        read = f"{self._named(inner.from_message)}({at})"
        if is_optional:
            put = f"if v.{name} is not None: {put}"
            read = f"{read} if m.HasField({field.name!r}) else None"
        self._encoding.append(put)
        self._decoding.append(f"{name}={read}")

    def _sequence(self, name: str, field: _Field, kind: type, item: Any) -> None:
        at = f"m.{field.name}"
        if field.message_type:
            if kind is not tuple:  # of dataclasses there is no order that would make the same bytes
                raise self._disagree(name, field)
            inner = _codec_of(item, field)
            self._encoding.append(f"if x := v.{name}:")
            self._encoding.append(f"    add = {at}.add")
            self._encoding.append(f"    for one in x: {self._named(inner.fill)}(one, add())")
            self._decoding.append(f"{name}=tuple(map({self._named(inner.from_message)}, {at}))")
            return
        # A set has no order; its bytes are the same each time.
        put = "x" if kind is tuple else "sorted(x)"
        self._encoding.append(f"if x := v.{name}: {at}.extend({put})")
        one = self._scalar(name, field, item, "x")
        read = at if one == "x" else f"[{one} for x in {at}]"
        self._decoding.append(f"{name}={kind.__name__}({read})")

    def _mapping(self, name: str, field: _Field, args: tuple[Any, ...]) -> None:
        at, entry = f"m.{field.name}", field.message_type
        for hint, part in zip(args, entry.fields, strict=True):
            self._scalar(name, part, hint, "")
        self._encoding.append(f"if x := v.{name}:")
        self._encoding.append(f"    entries = {at}")
        self._encoding.append("    for key, one in x.items(): entries[key] = one")
        self._decoding.append(f"{name}=view(dict({at}))")

    def _disagree(self, name: str, field: _Field) -> TypeError:
        return TypeError(f"{self._title}: {name} and {field.name} are of different types")
