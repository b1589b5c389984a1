"""Converts dataclasses to protobuf messages and back, compiled once for each pair.

As `dataclasses` does, a codec generates the source of its functions and compiles it: as fast as code written by hand.
A field without a counterpart, or with one of another type, is an error when the codec is made: no new field is
silently dropped.
"""

from __future__ import annotations

import enum
import linecache
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
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
from google.protobuf.timestamp_pb2 import Timestamp

T = TypeVar("T")
M = TypeVar("M", bound=Message)
_Field: TypeAlias = Any
"""A `FieldDescriptor`; each implementation of protobuf has its own class of it."""

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
"""For annotations of modules that import these names for type checkers only."""


class Convert(NamedTuple):
    """A custom conversion of one field.

    Attributes:
        encode: from the dataclass's field to the message's field's value; None leaves it unset.
        decode: back, from the message's field.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Spread(NamedTuple):
    """A custom conversion of a dataclass field that does not correspond to exactly one message field.

    Attributes:
        fields: the corresponding message fields.
        encode: sets them, called with the dataclass and the message.
        decode: from the message to the dataclass's field.
    """

    fields: tuple[str, ...]
    encode: Callable[[Any, Any], None]
    decode: Callable[[Any], Any]


class Encoder(Generic[T, M]):
    """Makes messages of a dataclass; `encoder` and `codec` compile it.

    Attributes:
        fill: sets the fields of an empty message.
        to_message: returns a value's message.
    """

    __slots__ = ("fill", "to_message")

    def __init__(self, compiled: Mapping[str, Any]) -> None:
        self.fill: Callable[[T, M], None] = compiled["fill"]
        self.to_message: Callable[[T], M] = compiled["to_message"]


class Codec(Encoder[T, M]):
    """Converts between a dataclass and a message; `codec` compiles it.

    Attributes:
        from_message: returns a message's value.
    """

    __slots__ = ("_parse", "from_message")

    def __init__(self, compiled: Mapping[str, Any]) -> None:
        super().__init__(compiled)
        self._parse: Callable[[bytes], M] = compiled["Message"].FromString
        self.from_message: Callable[[M], T] = compiled["from_message"]

    def encode(self, value: T) -> bytes:
        """Return a value as bytes."""
        return self.to_message(value).SerializeToString()

    def decode(self, data: bytes) -> T:
        """Return the value in bytes.

        Raises:
            ValueError: not such a message, or a value of an enumeration is unknown.
        """
        try:
            return self.from_message(self._parse(data))
        except DecodeError as error:
            raise ValueError(str(error)) from error


_made: Final[dict[tuple[type, type], Encoder[Any, Any]]] = {}
"""All compiled codecs, by dataclass and message: nested ones are looked up here."""


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

    Nested dataclasses use the codec that was made for their pair, else a new one without exceptions.

    Args:
        kind: the dataclass, or a named tuple.
        message: the class of the message.
        rename: fields of the message by those of the dataclass, if they differ.
        convert: custom conversions, by field of the dataclass.
        spread: the same, for fields that do not correspond to exactly one field of the message.
        unset: values of unset fields, as older versions left them.
        extra: message fields missing in the dataclass: the caller sets them.
        omit: dataclass fields missing in the message: they are read as their defaults.

    Raises:
        TypeError: the two do not agree, an exception names a missing field, or they were compiled already.
    """
    writing = _Writing(kind, message, is_two_way=True)
    writing.fields(
        rename=rename or {},
        convert=convert or {},
        spread=spread or {},
        unset=unset or {},
        extra=extra,
        omit=omit,
    )
    one: Codec[T, M] = Codec(writing.compiled())
    _made[kind, message] = one
    return one


def encoder(
    kind: type[T],
    message: type[M],
    *,
    rename: Mapping[str, str] | None = None,
    convert: Mapping[str, Callable[[Any], Any]] | None = None,
    extra: Collection[str] = (),
    omit: Collection[str] = (),
) -> Encoder[T, M]:
    """Compile only the way to the message: for output that is never read back. Arguments as for `codec`.

    Times in seconds may be timestamps there, absent for 0, and enumerations those of the contract, by name.
    """
    writing = _Writing(kind, message, is_two_way=False)
    ways = {name: Convert(way, _no_way_back) for name, way in (convert or {}).items()}
    writing.fields(rename=rename or {}, convert=ways, spread={}, unset={}, extra=extra, omit=omit)
    one: Encoder[T, M] = Encoder(writing.compiled())
    _made[kind, message] = one
    return one


def _no_way_back(_: Any) -> Any:
    raise NotImplementedError


def _set_time(message: Timestamp, seconds: float) -> None:
    message.seconds, message.nanos = divmod(round(seconds * 1e9), 10**9)


def _field_names(kind: Any) -> Iterable[str]:
    return (one.name for one in fields(kind)) if is_dataclass(kind) else kind._fields


class _Members(dict[Any, Any]):
    """Members of an enumeration by value: faster than calling it, and with the same error."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        super().__init__((one.value, one) for one in kind)
        self._kind = kind

    def __missing__(self, value: Any) -> Any:
        return self._kind(value)


class _Writing:
    """Source of one codec being generated: `v` is the value, `m` the message."""

    def __init__(self, kind: type, message: type[Message], *, is_two_way: bool) -> None:
        self._title = f"{kind.__name__} and {message.DESCRIPTOR.full_name}"
        if (kind, message) in _made:
            raise TypeError(f"{self._title} were compiled already")
        self._kind = kind
        self._message_type = message
        self._is_two_way = is_two_way
        self._names: dict[str, Any] = {
            "Kind": kind,
            "Message": message,
            "view": MappingProxyType,
            "set_time": _set_time,
        }
        self._encoding: list[str] = []
        self._decoding: list[str] = []

    def fields(
        self,
        *,
        rename: Mapping[str, str],
        convert: Mapping[str, Convert],
        spread: Mapping[str, Spread],
        unset: Mapping[str, Any],
        extra: Collection[str],
        omit: Collection[str],
    ) -> None:
        """Write each field of the dataclass."""
        there = self._message_type.DESCRIPTOR.fields_by_name
        left = set(there) - set(extra)
        names = tuple(_field_names(self._kind))
        stray = {*rename, *convert, *spread, *unset, *omit}.difference(names)
        stray.update(set(extra).difference(there))
        if stray:
            raise TypeError(f"{self._title}: neither has {', '.join(sorted(stray))}")
        hints = get_type_hints(self._kind, localns=_TYPING_NAMES)
        for name in names:
            if name in omit:
                continue
            if name in spread:
                self._by_hand(name, spread[name])
                left.difference_update(spread[name].fields)
                continue
            other = rename.get(name, name)
            if other not in left:
                raise TypeError(f"{self._title}: the message has no {other}")
            left.remove(other)
            if name in convert:
                self._converted(name, there[other], convert[name])
            else:
                self._field(name, there[other], hints[name], unset.get(name))
        if left:
            raise TypeError(f"{self._title}: the dataclass has no {', '.join(sorted(left))}")

    def _named(self, thing: Any) -> str:
        name = f"_{len(self._names)}"
        self._names[name] = thing
        return name

    def compiled(self) -> dict[str, Any]:
        """Return the generated functions, by name."""
        lines = ["def fill(v, m):", *(f"    {line}" for line in self._encoding or ["pass"])]
        lines += ["def to_message(v):", "    m = Message()", "    fill(v, m)", "    return m"]
        if self._is_two_way:
            lines += ["def from_message(m):", "    return Kind("]
            lines += [*(f"        {line}," for line in self._decoding), "    )"]
        source, filename = "\n".join(lines), f"<codec of {self._title}>"
        exec(compile(source, filename, "exec"), self._names)  # noqa: S102 - made of names in our code
        # Tracebacks show its lines.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        return self._names

    def _by_hand(self, name: str, way: Spread) -> None:
        """Write a field that is spread over others."""
        self._encoding.append(f"{self._named(way.encode)}(v, m)")
        self._decoding.append(f"{name}={self._named(way.decode)}(m)")

    def _converted(self, name: str, field: _Field, way: Convert) -> None:
        """Write a field with a custom conversion."""
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

    def _field(self, name: str, field: _Field, hint: Any, unset: Any) -> None:
        """Write a field of both."""
        args = get_args(hint)
        is_optional = NoneType in args
        if is_optional:
            (hint,) = (one for one in args if one is not NoneType)
            args = get_args(hint)
        kind = get_origin(hint) or hint
        if not field.is_repeated:
            self._single(name, field, kind, unset, is_optional=is_optional)
        elif kind is Mapping:
            self._mapping(name, field, args)
        elif (kind is tuple and args[1:] == (...,)) or kind is frozenset:
            self._sequence(name, field, kind, args[0])
        else:
            raise self._disagree(name, field)

    def _single(
        self, name: str, field: _Field, kind: Any, unset: Any, *, is_optional: bool
    ) -> None:
        at = f"m.{field.name}"
        if kind is float and field.message_type is Timestamp.DESCRIPTOR:
            self._only_encoded(name, field, f"if x := v.{name}: set_time({at}, x)")
        elif field.message_type:
            self._message(name, field, kind, is_optional=is_optional)
        elif field.enum_type:
            numbers = self._named(self._numbers(name, field, kind))
            line = f"if (x := v.{name}) is not None: {at} = {numbers}[x]"
            self._only_encoded(name, field, line)
        elif is_optional:
            self._optional(name, field, kind)
        else:
            put = f"{at} = v.{name}" if field.has_presence else f"if x := v.{name}: {at} = x"
            self._encoding.append(put)
            or_else = f"({at} or {self._named(unset)})" if unset is not None else at
            self._decoding.append(f"{name}={self._scalar(name, field, kind, or_else)}")

    def _optional(self, name: str, field: _Field, kind: Any) -> None:
        """Write a scalar or None."""
        at = f"m.{field.name}"
        self._encoding.append(f"if (x := v.{name}) is not None: {at} = x")
        value = self._scalar(name, field, kind, at)
        if field.has_presence:
            self._decoding.append(f"{name}={value} if m.HasField({field.name!r}) else None")
        elif isinstance(kind, enum.EnumMeta) and all(kind):
            self._decoding.append(f"{name}={value} if {at} else None")
        elif self._is_two_way:  # a value would be read as an unset field
            raise self._disagree(name, field)

    def _scalar(self, name: str, field: _Field, kind: Any, read: str) -> str:
        """Return the expression that converts a read value."""
        is_enum = isinstance(kind, enum.EnumMeta)
        base = next((one for one in (str, int) if is_enum and issubclass(kind, one)), kind)
        if field.type not in _SCALARS.get(base, ()):
            raise self._disagree(name, field)
        return f"{self._named(_Members(kind))}[{read}]" if is_enum else read

    def _only_encoded(self, name: str, field: _Field, line: str) -> None:
        if self._is_two_way:
            raise self._disagree(name, field)
        self._encoding.append(line)

    def _numbers(self, name: str, field: _Field, kind: Any) -> dict[Any, int]:
        """Return the numbers of the contract's enumeration, by our members of the same names."""
        prefix = re.sub("(?<!^)(?=[A-Z])", "_", field.enum_type.name).upper()
        there = field.enum_type.values_by_name
        try:
            return {one: there[f"{prefix}_{one.name}"].number for one in kind}
        except (KeyError, TypeError):
            raise self._disagree(name, field) from None

    def _inner(self, kind: Any, name: str, field: _Field) -> tuple[str, str]:
        """Return the names of the functions that convert a nested dataclass, and back."""
        message = GetMessageClass(field.message_type)
        one = _made.get((kind, message))
        if one is None:
            one = codec(kind, message) if self._is_two_way else encoder(kind, message)
        if self._is_two_way and not isinstance(one, Codec):
            raise self._disagree(name, field)
        return self._named(one.fill), self._named(getattr(one, "from_message", None))

    def _message(self, name: str, field: _Field, kind: Any, *, is_optional: bool) -> None:
        (fill, from_message), at = self._inner(kind, name, field), f"m.{field.name}"
        put = f"x = {at}; x.SetInParent(); {fill}(v.{name}, x)"
        read = f"{from_message}({at})"
        if is_optional:
            put = f"if v.{name} is not None: {put}"
            read = f"{read} if m.HasField({field.name!r}) else None"
        self._encoding.append(put)
        self._decoding.append(f"{name}={read}")

    def _sequence(self, name: str, field: _Field, kind: type, item: Any) -> None:
        at = f"m.{field.name}"
        if field.message_type:
            if kind is not tuple:  # dataclasses have no order for reproducible bytes
                raise self._disagree(name, field)
            fill, from_message = self._inner(item, name, field)
            self._encoding.append(f"if x := v.{name}:")
            self._encoding.append(f"    add = {at}.add")
            self._encoding.append(f"    for one in x: {fill}(one, add())")
            self._decoding.append(f"{name}=tuple(map({from_message}, {at}))")
            return
        # A set has no order; sorted, its bytes are reproducible.
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
