"""Numbers from any array-like value, without importing numpy, torch or similar libraries.

Arrays of numpy are read by their own methods; tensors are converted first; lists, `array` and
memoryviews are read directly.
"""

from __future__ import annotations

from math import isfinite, isnan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Sequence, Tuple

MOST_NUMBERS = 1 << 28
MOST_WHY_CHARS = 200
"""Limit for texts of other libraries: those of torch fill a page."""


def unwrapped(value: Any) -> Any:
    """Convert `value` to an array of numpy, or to nested lists of numbers.

    Raises:
        TypeError: it cannot be converted.
    """
    if is_array(value):
        return value
    if is_tensor(value):
        return _of_tensor(value)
    if isinstance(value, (list, tuple)):
        return [entry if isinstance(entry, (int, float)) else unwrapped(entry) for entry in value]
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError("text and bytes are no array of numbers")
    return _of_another(value)


def is_array(value: Any) -> bool:
    """Return whether a value has the methods of an array of numpy."""
    return hasattr(value, "__array_interface__") and hasattr(value, "astype")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch, with channels first."""
    return hasattr(value, "detach")


def shape_of(value: Any) -> Tuple[int, ...]:
    """Return the shape of a value.

    Raises:
        TypeError: it has lists of different lengths, or is too large.
    """
    if is_array(value):
        shape = tuple(int(length) for length in value.shape)
    else:
        shape = _shape_of_list(value)
    count = 1
    for length in shape:
        count *= length
    if count > MOST_NUMBERS:
        raise TypeError(
            f"an array of {count} numbers is more than the {MOST_NUMBERS} that are taken"
        )
    return shape


def flat(value: Any) -> Sequence[Any]:
    """Return all numbers in order, unconverted."""
    if is_array(value):
        listed = value.reshape(-1).tolist()
        return listed if isinstance(listed, list) else [listed]
    return list(_leaves(value))


def finite(value: Any) -> Tuple[List[float], int]:
    """Return the finite numbers of nested lists as floats, and the count of the others."""
    numbers = [_float(entry) for entry in _leaves(value)]
    kept = [number for number in numbers if isfinite(number)]
    return kept, len(numbers) - len(kept)


def levels(value: Any) -> bytes:
    """Convert each number to a byte: floats from 0 to 1 become 0 to 255, integers are clipped to that range.

    Raises:
        TypeError: it has other values.
    """
    if is_array(value):
        return _levels_of_array(value)
    numbers = flat(value)
    try:
        if any(not isinstance(number, (int, bool)) for number in numbers):
            return bytes([_level(_float(number)) for number in numbers])
        if numbers and all(isinstance(number, bool) for number in numbers):
            return bytes([255 * number for number in numbers])
        return bytes([min(max(number, 0), 255) for number in numbers])
    except ValueError as error:
        raise TypeError(f"not an array of numbers: {error}") from error


def spread(value: Any) -> Any:
    """Scale the numbers to 0 to 1; infinite ones and NaN count as 0."""
    if is_array(value):
        value = value.astype("float32")
        value[~((value > float("-inf")) & (value < float("inf")))] = 0
        low, high = float(value.min()), float(value.max())
        return (value - low) / ((high - low) or 1.0)
    numbers = [number if isfinite(number) else 0.0 for number in map(_float, flat(value))]
    low, high = min(numbers), max(numbers)
    width = (high - low) or 1.0
    return [(number - low) / width for number in numbers]


def _of_another(value: Any) -> Any:
    on_device = ("get",) if hasattr(value, "__cuda_array_interface__") else ()  # cupy
    for method in (*on_device, "numpy", "__array__"):
        if callable(getattr(value, method, None)) and not isinstance(value, (type, dict)):
            made = getattr(value, method)()
            if is_array(made):
                return made
    try:
        return memoryview(value).tolist()
    except (TypeError, NotImplementedError):
        pass
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no array of numbers")


def _of_tensor(value: Any) -> Any:
    try:
        return _dense(value)
    except RuntimeError as error:  # sparse, quantized, without data
        why = (str(error).splitlines() or [""])[0][:MOST_WHY_CHARS]
        raise TypeError(f"a {type(value).__name__} that gives no numbers: {why}") from error


def _dense(value: Any) -> Any:
    value = value.detach()
    if hasattr(value, "cpu"):
        value = value.cpu()
    try:
        return value.numpy()
    except (TypeError, RuntimeError):
        pass  # bfloat16, or a torch without numpy
    value = value.float()
    try:
        return value.numpy()
    except (TypeError, RuntimeError):
        return value.tolist()


def _levels_of_array(value: Any) -> bytes:
    kind = value.dtype.kind
    if kind == "b":
        value = value.astype("uint8") * 255
    elif kind in "ui":
        if value.dtype.itemsize > 1 or kind == "i":
            value = value.clip(0, 255).astype("uint8")
    elif kind == "f":
        value = value.astype("float32")
        value[~(value > float("-inf"))] = 0  # NaN and -inf become 0
        value = (value.clip(0, 1) * 255 + 0.5).astype("uint8")
    else:
        raise TypeError(f"an array of {value.dtype} is no image")
    made = value.tobytes()
    return made if isinstance(made, bytes) else bytes(made)


def _level(number: float) -> int:
    return 0 if isnan(number) else int(min(max(number, 0.0), 1.0) * 255 + 0.5)


def _float(number: Any) -> float:
    try:
        return float(number)
    except (ValueError, OverflowError) as error:
        raise TypeError(f"not a number: {error}") from error


def _shape_of_list(value: Any) -> Tuple[int, ...]:
    if is_array(value):
        return shape_of(value)
    if not isinstance(value, (list, tuple)):
        return ()
    if not value:
        return (0,)
    first = _shape_of_list(value[0])
    if any(_shape_of_list(entry) != first for entry in value[1:]):
        raise TypeError("not an array: lists of different lengths lie beside one another")
    return (len(value), *first)


def _leaves(value: Any) -> Iterator[Any]:
    if is_array(value):
        yield from flat(value)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value
