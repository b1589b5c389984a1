"""Reads event files of TensorBoard from bytes: TFRecords with protobuf `Event`s, decoded by hand.

Event files are input from anywhere, and may be damaged, truncated or still growing. A reader stops at a damaged length,
since no later record can be found then; it skips single records and values that it cannot read, and counts them.
Nothing here needs TensorBoard, TensorFlow or protobuf.
"""

from __future__ import annotations

import struct
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple

    class EventValue(NamedTuple):
        """One value of an event.

        Attributes:
            kind: `scalar`: a float; `image`, `audio`: an encoded file as bytes; `text`: a str; `histogram`: edges, and
                counts between them; `pr_curve`: pairs of precision and recall; `hparams`: a dict; `purge`: None, and
                earlier points of the run from this step on are void.
            tag: the name; "" for `hparams` and `purge`.
            step: any 64-bit integer.
            time: wall time in Unix seconds, which may be any float.
            value: by kind.
        """

        kind: str
        tag: str
        step: int
        time: float
        value: Any

    Pairs = List[Tuple[int, int, Any]]
else:
    from collections import namedtuple

    EventValue = namedtuple("EventValue", "kind tag step time value")  # noqa: PYI024 - typing costs more

MOST_RECORD_BYTES = 80 << 20
"""Longer records are skipped without loading them."""
MOST_VALUES = 10_000
"""Most values of one event; further ones are skipped."""
MOST_TAG_BYTES = 4_096
_LARGEST_RECORD = 1 << 31
"""Longer ones cannot exist, since protobuf refuses them: the length is damaged."""
_CHUNK = 1 << 20
_HEADER = 12
_FOOTER = 4
_TIME, _STEP = 0x09, 0x10
"""The first bytes of the fields of an event."""
_SMALLEST_QUICK = 22
_LONGEST_STEP_AT = 20
_LARGEST_FLOAT = 3e38
_MOST_REMEMBERED = 20_000
_MOST_NUMBERS = 3 * 4_096
_MOST_STRINGS = 1_000
_MOST_TEXT = 4 << 20
_MOST_BINS = 4_096
_MOST_HPARAMS = 2_000
_SIGN = 1 << 63
_ALL_STEPS = 1 << 64

_double = Struct("<d").unpack_from
_float = Struct("<f").unpack_from
_pack_float = Struct("<f").pack
_uint64 = Struct("<Q").unpack_from
_uint32 = Struct("<I").unpack_from

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STRING = 7
_BFLOAT16 = 14
_HALF = 19
_FORMATS = {
    1: "f",
    2: "d",
    3: "i",
    4: "B",
    5: "h",
    6: "b",
    9: "q",
    10: "?",
    _BFLOAT16: "H",
    17: "H",
    _HALF: "e",
    22: "I",
    23: "Q",
}
"""Format of one number in `tensor_content`, by data type."""
_NUMBER_FIELDS = {5: "f", 6: "d", 7: "", 10: "", 11: "", 13: "", 16: "", 17: ""}
"""Fields of numbers in a tensor, and the format of each; "" for varints."""


class BadMessageError(ValueError):
    """The bytes are no valid message."""


_UNREADABLE = (BadMessageError, struct.error, IndexError, OverflowError)


class EventReader:
    """The state of reading one event file; reading continues at `offset` once the file has grown.

    Args:
        verify: check the data of each record, too, and skip damaged ones: ten times slower. By default only the
            lengths are checked.

    Attributes:
        offset: the bytes that are read.
        damage: why nothing after `offset` can be read; "" if it can.
        skipped: records and values that were not readable or too large.
    """

    def __init__(self, *, verify: bool = False) -> None:
        self.offset = 0
        self.damage = ""
        self.skipped = 0
        self._verify = verify
        self._lengths: Dict[bytes, int] = {}
        self._tags: Dict[bytes, str] = {}
        self._forms: Dict[Any, str] = {}
        self._distances: Dict[int, List[int]] = {}
        self._plugins: Dict[str, str] = {}

    def read(self, file: BinaryIO) -> Iterator[List[EventValue]]:
        """Yield the values of all whole records from `offset` on, in lists; a record that is not whole stays for later.

        `offset` is beyond the records of each list once it is yielded. Raises OSError.
        """
        want = _CHUNK
        while not self.damage:
            file.seek(self.offset)
            data = file.read(want)
            before = self.offset
            found, need = self.parse(data)
            if found:
                yield found
            if self.offset == before:  # not one whole record
                if len(data) < want or need <= want:
                    return
                want = need
            else:
                want = _CHUNK

    def parse(self, data: bytes) -> Tuple[List[EventValue], int]:  # noqa: C901, PLR0912, PLR0915 - one loop is faster than calls
        """Parse what is in the file from `offset` on, and advance `offset` beyond the whole records.

        Also return how many bytes from the new `offset` on the next record needs, as far as is known.
        """
        found: List[EventValue] = []
        add, make, new = found.append, EventValue, tuple.__new__
        double, float32 = _double, _float
        lengths, forms, distances = self._lengths, self._forms, self._distances
        size = len(data)
        at, need = 0, _HEADER
        while at + _HEADER <= size:
            header = data[at : at + _HEADER]
            length = lengths.get(header)
            if length is None:
                length = self._length(header)
                if length < 0:
                    break
            begin = at + _HEADER
            end = begin + length
            if length > MOST_RECORD_BYTES:
                self.skipped += 1
                at = (
                    end + _FOOTER
                )  # perhaps beyond the data, and even the file: nothing is read up to there
                break
            if end + _FOOTER > size:
                need = end + _FOOTER - at
                break
            at = end + _FOOTER
            if self._verify and not _is_whole(data, begin, length):
                self.skipped += 1
                continue
            if length >= _SMALLEST_QUICK and data[begin] == _TIME and data[begin + 9] == _STEP:
                # The form of nearly all events: time, step, and a summary with one number.
                place = begin + 10
                step = data[place]
                if step > 0x7F:
                    place += 1
                    step += (data[place] - 1) << 7
                    shift = 14
                    while data[place] > 0x7F and shift < 63:
                        place += 1
                        step += (data[place] - 1) << shift
                        shift += 7
                place += 1
                number_at = end - 4
                tag = forms.get(data[place:number_at])
                if tag is None:
                    for distance in distances.get(end - place, ()):
                        number_at = end - distance
                        tag = forms.get((data[place:number_at], data[number_at + 4 : end]))
                        if tag is not None:
                            break
                if tag is not None:
                    time, value = double(data, begin + 1)[0], float32(data, number_at)[0]
                    add(new(make, ("scalar", tag, step, time, value)))
                    continue
            self._event(data[begin:end], found)
        self.offset += at
        return found, need

    def _length(self, header: bytes) -> int:
        """Return the length in a header of a record; -1 if it is damaged."""
        (length,) = _uint64(header)
        if _masked_crc(header[:8]) != _uint32(header, 8)[0]:
            self.damage = "the length of a record is damaged"
            return -1
        if length >= _LARGEST_RECORD:
            self.damage = "a record is longer than any can be"
            return -1
        if len(self._lengths) >= _MOST_REMEMBERED:
            self._lengths.clear()
        self._lengths[header] = length
        return int(length)

    def _tag(self, raw: bytes) -> str:
        if len(self._tags) >= _MOST_REMEMBERED:
            self._tags.clear()
        tag = self._tags[raw] = raw.decode("utf-8", "replace")
        return tag

    def event(self, data: bytes) -> List[EventValue]:
        """Return the values of one serialized event."""
        found: List[EventValue] = []
        self._event(data, found, is_trial=True)
        return found

    def _event(self, data: bytes, found: List[EventValue], *, is_trial: bool = False) -> None:
        """Append the values of any event. A trial teaches nothing about later ones."""
        count = len(found)
        try:
            time, step = 0.0, 0
            summaries: List[bytes] = []
            is_start = False
            for number, kind, value in fields(data):
                if number == 1 and kind == _FIXED64:
                    time = _double(value)[0]
                elif number == 2 and kind == _VARINT:
                    step = value - _ALL_STEPS if value >= _SIGN else value
                elif number == 5 and kind == _BYTES:
                    summaries.append(value)
                elif number == 7 and kind == _BYTES:
                    is_start = (1, _VARINT, 1) in fields(value)
            if is_start:
                found.append(EventValue("purge", "", step, time, None))
            for value in self._values(summaries):
                self._value(value, step, time, found)
        except _UNREADABLE:
            self.skipped += 1
        if not is_trial and len(found) == count + 1 and found[-1].kind == "scalar":
            self._learn(data, found[-1])

    def _values(self, summaries: List[bytes]) -> Iterator[bytes]:
        left = MOST_VALUES
        for summary in summaries:
            for number, kind, value in fields(summary):
                if number == 1 and kind == _BYTES:
                    if left == 0:
                        self.skipped += 1
                        return
                    left -= 1
                    yield value

    def _learn(self, data: bytes, one: EventValue) -> None:
        """Remember the bytes around the number of an event, for the next one of this form.

        That these bytes are nothing but the number is proven by events with others.
        """
        if data[0] != _TIME or data[9:10] != b"\x10" or not abs(one.value) < _LARGEST_FLOAT:
            return
        place = 10
        while data[place] > 0x7F:
            place += 1
        place += 1
        at = data.rfind(_pack_float(one.value))
        if at < place or place > _LONGEST_STEP_AT:
            return
        for number in (0.625, -3.5):
            found: List[EventValue] = []
            self._event(data[:at] + _pack_float(number) + data[at + 4 :], found, is_trial=True)
            if found != [one._replace(value=number)]:
                return
        if len(self._forms) >= _MOST_REMEMBERED:
            self._forms.clear()
            self._distances.clear()
        distance = len(data) - at
        if distance == 4:
            self._forms[data[place:at]] = one.tag
            return
        self._forms[data[place:at], data[at + 4 :]] = one.tag
        distances = self._distances.setdefault(len(data) - place, [])
        if distance not in distances:
            distances.append(distance)

    def _value(self, data: bytes, step: int, time: float, found: List[EventValue]) -> None:
        """Append one value of a summary, whatever is in it."""
        try:
            parts = {
                number: content
                for number, kind, content in fields(data)
                if kind == _BYTES or (number == 2 and kind == _FIXED32)
            }
            raw = parts.get(1, b"")
            if len(raw) > MOST_TAG_BYTES:
                self.skipped += 1
                return
            tag = self._tags.get(raw) or self._tag(raw)
            plugin = self._plugin(tag, parts[9]) if 9 in parts else self._plugins.get(tag, "")
            if plugin == "hparams":
                tag, values = "", [("hparams", "", _hparams_of(_plugin(parts[9])[1]) or None)]
            else:
                values = _shown(tag, plugin, parts)
            found += [
                EventValue(kind, name, step, time, value)
                for kind, name, value in values
                if value is not None
            ]
        except _UNREADABLE:
            self.skipped += 1

    def _plugin(self, tag: str, metadata: bytes) -> str:
        """Return the plugin in the metadata of a value, which may be missing in later events of the tag."""
        name = _plugin(metadata)[0]
        if name and name != "hparams" and len(self._plugins) < _MOST_REMEMBERED:
            self._plugins[tag] = name
        return name


def _shown(tag: str, plugin: str, parts: Dict[int, bytes]) -> List[Tuple[str, str, Any]]:
    """Return kind, tag and value of each thing that a value of a summary shows; None as a value shows nothing."""
    if 2 in parts:
        return [("scalar", tag, _float(parts[2])[0])]
    if 8 in parts:
        return _shown_by_tensor(plugin, tag, Tensor(parts[8]))
    if 4 in parts:
        return [("image", tag, _one(parts[4], 4))]
    if 5 in parts:
        return [("histogram", tag, _histogram(parts[5]))]
    if 6 in parts:
        return [("audio", tag, _one(parts[6], 4))]
    return []


def _shown_by_tensor(plugin: str, tag: str, tensor: Tensor) -> List[Tuple[str, str, Any]]:
    """Return the same for a tensor of a plugin."""
    shown: List[Tuple[str, str, Any]] = []
    if plugin == "scalars":
        shown = [("scalar", tag, number) for number in tensor.numbers(1)]
    elif plugin == "text":
        texts = [one[:_MOST_TEXT].decode("utf-8", "replace") for one in tensor.strings()]
        shown = [("text", tag, "\n\n".join(texts))] if texts else []
    elif plugin == "images":
        shown = _numbered("image", tag, tensor.strings()[2:])  # after width and height
    elif plugin == "audio":
        has_labels = tensor.shape[-1:] == [2]
        shown = _numbered("audio", tag, tensor.strings()[:: 2 if has_labels else 1])
    elif plugin in ("histograms", "pr_curves"):
        numbers = tensor.numbers(_MOST_NUMBERS)
        if plugin == "histograms" and numbers and len(numbers) % 3 == 0:
            shown = [("histogram", tag, _bins([numbers[0], *numbers[1::3]], numbers[2::3]))]
        elif numbers and tensor.shape[:1] == [6]:
            count = len(numbers) // 6
            pairs = zip(numbers[4 * count : 5 * count], numbers[5 * count :])
            shown = [("pr_curve", tag, [list(pair) for pair in pairs])]
    return shown


def _numbered(kind: str, tag: str, values: List[bytes]) -> List[Tuple[str, str, Any]]:
    if len(values) == 1:
        return [(kind, tag, values[0])]
    return [(kind, f"{tag}/{number}", value) for number, value in enumerate(values)]


class Tensor:
    """A protobuf `TensorProto`.

    Attributes:
        shape: its dimensions; a negative one, of an unknown size, is 0.
    """

    def __init__(self, data: bytes) -> None:
        self.shape: List[int] = []
        self._type = 0
        self._content = b""
        self._strings: List[bytes] = []
        self._numbers: List[Tuple[int, int, Any]] = []
        for number, kind, value in fields(data):
            if number == 1 and kind == _VARINT:
                self._type = value
            elif number == 2 and kind == _BYTES:
                self.shape = [_size(one[2]) for one in fields(value) if one[:2] == (2, _BYTES)][:8]
            elif number == 4 and kind == _BYTES:
                self._content = value
            elif number == 8 and kind == _BYTES:
                if len(self._strings) < _MOST_STRINGS:
                    self._strings.append(value)
            elif number in _NUMBER_FIELDS and len(self._numbers) < _MOST_NUMBERS:
                self._numbers.append((number, kind, value))

    def strings(self) -> List[bytes]:
        """Return the strings."""
        return self._strings if self._type == _STRING else []

    def numbers(self, most: int) -> List[float]:
        """Return the first `most` numbers; [] if it has none."""
        form = _FORMATS.get(self._type, "")
        if not form:
            return []
        found: List[Any] = []
        if self._content:
            count = min(len(self._content) // struct.calcsize("<" + form), most)
            found += struct.unpack_from(f"<{count}{form}", self._content)
        else:
            found += self._from_fields(most)
        if self._type == _BFLOAT16:
            found = [_float(struct.pack("<I", (int(one) & 0xFFFF) << 16))[0] for one in found]
        return [float(one) for one in found]

    def _from_fields(self, most: int) -> List[Any]:
        found: List[Any] = []
        for number, kind, value in self._numbers:
            found += self._of_field(number, kind, value, most - len(found))
            if len(found) >= most:
                break
        if self._type == _HALF:
            found = [struct.unpack("<e", struct.pack("<H", int(one) & 0xFFFF))[0] for one in found]
        count = 1
        for dimension in self.shape:
            count *= dimension
        if found and len(found) < count:  # the last number fills the rest
            found += [found[-1]] * (min(count, most) - len(found))
        return found

    def _of_field(self, number: int, kind: int, value: Any, most: int) -> List[Any]:
        """Return the numbers of one field, packed or single."""
        form = _NUMBER_FIELDS[number]
        if form:
            if kind in (_FIXED32, _FIXED64, _BYTES):
                count = min(len(value) // struct.calcsize("<" + form), most)
                return list(struct.unpack_from(f"<{count}{form}", value))
            return []
        if kind == _VARINT:
            return [self._signed(value)]
        found: List[Any] = []
        at = 0
        while kind == _BYTES and at < len(value) and len(found) < most:
            one, at = _varint(value, at)
            found.append(self._signed(one))
        return found

    def _signed(self, value: int) -> int:
        return value - _ALL_STEPS if value >= _SIGN and self._type != 23 else value


def _hparams_of(content: bytes) -> Dict[str, Any]:
    """Return the hyperparameters in the data of the plugin hparams; {} if it has others, or cannot be read."""
    found: Dict[str, Any] = {}
    try:
        for number, kind, value in fields(content):
            if number != 3 or kind != _BYTES:  # the start of a session
                continue
            for inner, inner_kind, entry in fields(value):
                if inner == 1 and inner_kind == _BYTES and len(found) < _MOST_HPARAMS:
                    key, plain = _hparam(entry)
                    if key:
                        found[key] = plain
    except (BadMessageError, struct.error, IndexError):
        pass
    return found


def _hparam(entry: bytes) -> Tuple[str, Any]:
    key, plain = "", None
    for number, kind, value in fields(entry):
        if kind != _BYTES:
            continue
        if number == 1:
            key = value[:MOST_TAG_BYTES].decode("utf-8", "replace")
        elif number == 2:
            for inner, inner_kind, one in fields(value):
                if inner == 2 and inner_kind == _FIXED64:
                    plain = _double(one)[0]
                    plain = int(plain) if plain == plain // 1 and abs(plain) < 2**53 else plain
                elif inner == 3 and inner_kind == _BYTES:
                    plain = one[:_MOST_TEXT].decode("utf-8", "replace")
                elif inner == 4 and inner_kind == _VARINT:
                    plain = bool(one)
    return key, plain


def _histogram_of(low: float, high: float, limits: Any, counts: Any) -> Optional[Tuple[Any, Any]]:
    """Return edges and counts of a histogram of TensorBoard 1; None if it has no values.

    Args:
        low: the smallest value.
        high: the largest.
        limits: the upper edge of each bucket; the last may be the largest float.
        counts: of each bucket.
    """
    limits, counts = list(limits), list(counts)
    if not limits or len(limits) != len(counts):
        return None
    first, last = 0, len(counts)
    while first < last and not counts[first]:
        first += 1
    while last > first and not counts[last - 1]:
        last -= 1
    if first == last:
        return None
    edges = [limits[first - 1] if first else min(low, limits[0]), *limits[first:last]]
    edges[0] = min(max(edges[0], low), edges[1])
    edges[-1] = max(min(edges[-1], high), edges[-2])
    return _bins(edges, counts[first:last])


def _bins(edges: List[float], counts: List[float]) -> Tuple[List[float], List[float]]:
    """Return at most as many bins as media may have: neighbours are joined."""
    join = -(-len(counts) // _MOST_BINS)
    if join > 1:
        counts = [sum(counts[at : at + join]) for at in range(0, len(counts), join)]
        edges = [*edges[:-1:join], edges[-1]]
    return edges, counts


def _histogram(data: bytes) -> Optional[Tuple[Any, Any]]:
    numbers: Dict[int, float] = {}
    lists: Dict[int, List[float]] = {6: [], 7: []}
    for number, kind, value in fields(data):
        if kind == _FIXED64:
            numbers[number] = _double(value)[0]
        if number in lists and kind in (_FIXED64, _BYTES):
            room = _MOST_REMEMBERED - len(lists[number])
            count = min(len(value) // 8, room)
            lists[number] += struct.unpack_from(f"<{count}d", value)
    return _histogram_of(numbers.get(1, 0.0), numbers.get(2, 0.0), lists[6], lists[7])


def _plugin(metadata: bytes) -> Tuple[str, bytes]:
    """Return name and data of the plugin in a `SummaryMetadata`."""
    name, content = "", b""
    for number, kind, value in fields(metadata):
        if number == 1 and kind == _BYTES:
            for inner, inner_kind, part in fields(value):
                if inner_kind == _BYTES and inner == 1:
                    name = part[:100].decode("utf-8", "replace")
                elif inner_kind == _BYTES and inner == 2:
                    content = part
    return name, content


def _one(data: bytes, wanted: int) -> Optional[bytes]:
    """Return a field of bytes; None without it."""
    found = None
    for number, kind, value in fields(data):
        if number == wanted and kind == _BYTES:
            found = value
    return found


def _size(dimension: bytes) -> int:
    for number, kind, value in fields(dimension):
        if number == 1 and kind == _VARINT:
            return int(value) if value < _SIGN else 0
    return 0


def fields(data: bytes) -> Iterator[Tuple[int, int, Any]]:
    """Yield number, wire type and content of each field of a message.

    Raises:
        BadMessageError: the bytes are no message.
    """
    at, size = 0, len(data)
    while at < size:
        key = data[at]
        if key > 0x7F:
            key, at = _varint(data, at)
        else:
            at += 1
        kind = key & 7
        if kind == _BYTES:
            length, at = _varint(data, at)
            end = at + length
        elif kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, kind, value
            continue
        elif kind == _FIXED64:
            end = at + 8
        elif kind == _FIXED32:
            end = at + 4
        else:  # a group, which no message here has
            raise BadMessageError
        if end > size:
            raise BadMessageError
        yield key >> 3, kind, data[at:end]
        at = end


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    """Return a number and the position after it.

    Raises:
        BadMessageError: it has more than 10 bytes, or is not whole.
    """
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (_ALL_STEPS - 1), place + 1
        shift += 7
    raise BadMessageError


def _table() -> Tuple[int, ...]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        found.append(value)
    return tuple(found)


_TABLE = _table()


def _masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C, as TFRecords have it."""
    table, value = _TABLE, 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_whole(data: bytes, begin: int, length: int) -> bool:
    """Return whether the data of a record has its checksum."""
    return bool(_masked_crc(data[begin : begin + length]) == _uint32(data, begin + length)[0])
