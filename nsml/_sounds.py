"""Encodes samples as 16-bit WAV."""

from __future__ import annotations

import sys
import wave
from array import array
from io import BytesIO
from math import isnan

from nsml._arrays import flat, is_array, shape_of, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

_MOST_CHANNELS = 8
_LARGEST = 32767


def wav(value: Any, sample_rate: int) -> Tuple[bytes, Dict[str, Any]]:
    """Encode samples N, NxC or CxN as a WAV file; return it and its properties.

    Raises:
        TypeError: the value is none of these.
    """
    if not (isinstance(sample_rate, int) and 1 <= sample_rate <= 1_000_000):
        raise TypeError(f"sample_rate is from 1 to 1,000,000 a second, not {sample_rate!r}")
    value = unwrapped(value)
    shape = shape_of(value)
    channels, is_first = 1, False
    if len(shape) == 2:
        is_first = shape[0] <= _MOST_CHANNELS and shape[0] < shape[1]
        channels = shape[0] if is_first else shape[1]
    elif len(shape) != 1:
        raise TypeError(f"audio is N, NxC or CxN, not {'x'.join(map(str, shape)) or 'a number'}")
    if not 1 <= channels <= _MOST_CHANNELS:
        raise TypeError(f"audio has 1 to {_MOST_CHANNELS} channels, not {channels}")
    if is_first:
        value = value.T if is_array(value) else [list(row) for row in zip(*value)]
    samples = _samples_of_array(value) if is_array(value) else _samples_of_list(value)
    written = BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(samples)
    count = len(samples) // 2 // channels
    facts = {"seconds": count / sample_rate, "sample_rate": sample_rate, "channels": channels}
    return written.getvalue(), facts


def _samples_of_array(value: Any) -> bytes:
    kind, size = value.dtype.kind, value.dtype.itemsize
    if kind == "f":
        value = value.astype("float32")
        value[~(value > float("-inf"))] = 0  # NaN and -inf become 0
        value = (value.clip(-1, 1) * _LARGEST).round()
    elif kind == "u" and size == 1:
        value = (value.astype("int32") - 128) * 256
    elif kind == "i" and size == 4:
        value = value >> 16
    elif kind in "ui":
        value = value.clip(-_LARGEST - 1, _LARGEST)
    else:
        raise TypeError(f"an array of {value.dtype} is no audio")
    return bytes(value.astype("<i2").tobytes())


def _samples_of_list(value: Any) -> bytes:
    numbers = flat(value)
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise TypeError("samples are numbers")
    if any(isinstance(number, float) for number in numbers):
        numbers = [round(min(max(n, -1.0), 1.0) * _LARGEST) if not isnan(n) else 0 for n in numbers]
    samples = array("h", [min(max(int(number), -_LARGEST - 1), _LARGEST) for number in numbers])
    if sys.byteorder == "big":
        samples.byteswap()
    return samples.tobytes()
