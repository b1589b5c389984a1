"""Encoding of images: PNG from arrays with zlib alone, several in a grid, a video as animated PNG.

Encoded files are detected by their first bytes and used unchanged.
"""

from __future__ import annotations

import struct
import zlib
from math import ceil, sqrt

from nsml._arrays import is_array, is_tensor, levels, shape_of, spread, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

    class Picture(NamedTuple):
        """Pixel bytes by rows from the top, with `channels` per pixel: grey, RGB or RGBA."""

        width: int
        height: int
        channels: int
        data: bytes
else:
    from collections import namedtuple

    Picture = namedtuple("Picture", "width height channels data")  # noqa: PYI024 - typing costs more

MOST_IN_GRID = 64
MOST_PIXELS = 1 << 26
MOST_FRAMES = 1024
_GAP = 2
_FAST = 3
"""Level of zlib: training waits for it."""
FORMATS = ("HW", "HWC", "CHW", "NHW", "NHWC", "NCHW")
"""Orders of the dimensions of one or several images: number, height, width, channels."""
_CHANNELS = (1, 3, 4)
_RGBA = 4
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_PNG = b"\x89PNG\r\n\x1a\n"


def pictures_of(
    value: Any, formats: str = "", doubt: Optional[Callable[[str], None]] = None
) -> List[Picture]:
    """Convert one image or a batch; `formats`: one of FORMATS, for a list of arrays that of each.

    By default it is HxW, HxWxC or CxHxW, with N first for several; C is 1, 3 or 4. In a tensor of torch C is
    expected first, else last; in other arrays the reverse. NxHxW without C are grey images. `doubt` is
    called if another order is as likely.

    Raises:
        TypeError: the value is none of these.
    """
    formats = formats.upper()
    if formats and formats not in FORMATS:
        raise TypeError(f"dataformats is one of {', '.join(FORMATS)}, not {formats[:20]!r}")
    if isinstance(value, (list, tuple)) and value and (is_array(value[0]) or is_tensor(value[0])):
        each = formats[formats.startswith("N") :]
        return [picture for one in value for picture in pictures_of(one, each, doubt)]
    in_front = is_tensor(value)
    value = unwrapped(value)
    shape = shape_of(value)
    taken = _checked(shape, formats) if formats else _format(shape, in_front)
    if doubt is not None and not formats and (other := _other_format(shape, taken)):
        doubt(
            f"{_shown(shape)} is taken as {taken}, and could be {other}:"
            f' dataformats="{taken}" or "{other}" says which'
        )
    count, height, width, channels, in_front = _layout(shape, taken)
    if not count * height * width:
        raise TypeError(f"an image of {_shown(shape)} has no pixels")
    if count * height * width > MOST_PIXELS:
        raise TypeError(f"{_shown(shape)} is more than the {MOST_PIXELS} pixels that are taken")
    data = levels(value)
    size = height * width * channels
    found = []
    for start in range(0, count * size, size):
        part = data[start : start + size]
        found.append(Picture(width, height, channels, _mixed(part, channels) if in_front else part))
    return found


def maps_of(value: Any) -> List[Picture]:
    """Convert each channel of CxHxW (of NxCxHxW: of the first) to a grey image, scaled from its minimum to its maximum.

    Raises:
        TypeError: the value is none of these.
    """
    value = unwrapped(value)
    shape = shape_of(value)
    if len(shape) == 4 and shape[0]:
        value, shape = value[0], shape[1:]
    if len(shape) == 2:
        value, shape = [value], (1, *shape)
    if len(shape) != 3 or not all(shape):
        raise TypeError(f"a feature map is CxHxW, not {_shown(shape)}")
    count, height, width = shape
    return [
        Picture(width, height, 1, levels(spread(value[channel])))
        for channel in range(min(count, MOST_IN_GRID))
    ]


def grid(pictures: Sequence[Picture]) -> Picture:
    """Join images in a grid, by rows, about as many across as down."""
    if len(pictures) == 1:
        return pictures[0]
    channels = max(picture.channels for picture in pictures)
    wide = max(picture.width for picture in pictures)
    high = max(picture.height for picture in pictures)
    across = ceil(sqrt(len(pictures)))
    down = ceil(len(pictures) / across)
    width, height = across * (wide + _GAP) - _GAP, down * (high + _GAP) - _GAP
    if width * height > MOST_PIXELS:
        raise TypeError(f"a grid of {width}x{height} is more than the {MOST_PIXELS} pixels taken")
    stride = width * channels
    canvas = bytearray(stride * height)
    for position, picture in enumerate(pictures):
        data = _with_channels(picture, channels)
        left = position % across * (wide + _GAP) * channels
        top = position // across * (high + _GAP)
        row_bytes = picture.width * channels
        for row in range(picture.height):
            start = (top + row) * stride + left
            canvas[start : start + row_bytes] = data[row * row_bytes : (row + 1) * row_bytes]
    return Picture(width, height, channels, bytes(canvas))


def png(picture: Picture) -> bytes:
    """Encode an image as PNG."""
    return b"".join(
        (_PNG, _header(picture), _chunk(b"IDAT", _packed(picture)), _chunk(b"IEND", b""))
    )


def animated_png(frames: Sequence[Picture], fps: float) -> bytes:
    """Encode frames of equal size as an animated PNG that loops."""
    first = frames[0]
    parts = [_PNG, _header(first), _chunk(b"acTL", struct.pack(">II", len(frames), 0))]
    number = 0
    delay = (1000, min(max(int(fps * 1000), 1), 65535)) if fps < 65 else (1, min(int(fps), 65535))
    for frame in frames:
        facts = (number, first.width, first.height, 0, 0, delay[0], delay[1], 0, 0)
        parts.append(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", *facts)))
        number += 1
        if frame is first:
            parts.append(_chunk(b"IDAT", _packed(frame)))
        else:
            parts.append(_chunk(b"fdAT", struct.pack(">I", number) + _packed(frame)))
            number += 1
    parts.append(_chunk(b"IEND", b""))
    return b"".join(parts)


def frames_of(value: Any) -> List[Picture]:
    """Convert frames of a video: TxHxWxC, TxCxHxW or TxHxW.

    Raises:
        TypeError: the value is none of these, or has too many frames.
    """
    if isinstance(value, (list, tuple)) and value and (is_array(value[0]) or is_tensor(value[0])):
        frames = [picture for one in value for picture in pictures_of(one)]
    else:
        shape = shape_of(unwrapped(value))
        if len(shape) not in (3, 4):
            raise TypeError(f"a video is TxHxWxC, TxCxHxW or TxHxW, not {_shown(shape)}")
        if len(shape) == 3:
            count, height, width = shape
            size, data = height * width, levels(unwrapped(value))
            if not size * count:
                raise TypeError(f"a video of {_shown(shape)} has no pixels")
            frames = [
                Picture(width, height, 1, data[at * size : (at + 1) * size]) for at in range(count)
            ]
        else:
            frames = pictures_of(value)
    if len(frames) > MOST_FRAMES:
        raise TypeError(f"{len(frames)} frames are more than the {MOST_FRAMES} that are taken")
    if any(frame[:3] != frames[0][:3] for frame in frames):
        raise TypeError("the frames of a video are of one size")
    return frames


def size_in(data: bytes) -> Optional[Dict[str, int]]:
    """Return width and height from the header of an encoded PNG, GIF, BMP or JPEG."""
    try:
        if data.startswith(_PNG):
            width, height = struct.unpack_from(">II", data, 16)
        elif data[:4] == b"GIF8":
            width, height = struct.unpack_from("<HH", data, 6)
        elif data[:2] == b"BM":
            width, height = struct.unpack_from("<ii", data, 18)
            height = abs(height)
        elif data[:3] == b"\xff\xd8\xff":
            width, height = _size_in_jpeg(data)
        else:
            return None
    except (struct.error, IndexError):
        return None
    return {"width": width, "height": height}


def _size_in_jpeg(data: bytes) -> Tuple[int, int]:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        (length,) = struct.unpack_from(">H", data, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + max(length, 2)
    raise IndexError("no frame in the JPEG")


def _checked(shape: Tuple[int, ...], formats: str) -> str:
    """Return the requested format, if the shape matches."""
    if len(shape) != len(formats):
        raise TypeError(
            f"{_shown(shape)} has {len(shape)} dimensions, and {formats} {len(formats)}"
        )
    if "C" in formats and shape[formats.index("C")] not in _CHANNELS:
        raise TypeError(
            f"C is 1, 3 or 4, and of {_shown(shape)} as {formats} it is {shape[formats.index('C')]}"
        )
    return formats


def _format(shape: Tuple[int, ...], in_front: bool) -> str:
    """Guess the format of a shape; `in_front`: channels are expected first."""
    if len(shape) == 2:
        return "HW"
    if len(shape) in (3, 4):
        several = "N" if len(shape) == 4 else ""
        first, _, last = shape[-3:]
        if first in _CHANNELS and (in_front or last not in _CHANNELS):
            return several + "CHW"
        if last in _CHANNELS:
            return several + "HWC"
        if len(shape) == 3:
            return "NHW"
    raise TypeError(
        "an image is HxW, HxWxC or CxHxW with 1, 3 or 4 channels, N in front for several: "
        f"not {_shown(shape)}"
    )


def _other_format(shape: Tuple[int, ...], taken: str) -> str:
    """Return another possible format of a shape; "" if it is unambiguous.

    Three channels first are always colours; four may be RGBA or four grey images.
    """
    first, last = shape[-3:][0], shape[-1]
    if "C" in taken and first in _CHANNELS and last in _CHANNELS:
        return taken.replace("CHW", "HWC") if "CHW" in taken else taken.replace("HWC", "CHW")
    return "NHW" if taken == "CHW" and first == _RGBA else ""


def _layout(shape: Tuple[int, ...], formats: str) -> Tuple[int, int, int, int, bool]:
    """Return count, height, width and channels of a shape in this format, and whether channels come first."""
    sizes = dict(zip(formats, shape))
    in_front = "CHW" in formats
    return sizes.get("N", 1), sizes["H"], sizes["W"], sizes.get("C", 1), in_front


def _mixed(planes: bytes, channels: int) -> bytes:
    """Interleave planes to pixels."""
    if channels == 1:
        return planes
    size = len(planes) // channels
    mixed = bytearray(len(planes))
    for channel in range(channels):
        mixed[channel::channels] = planes[channel * size : (channel + 1) * size]
    return bytes(mixed)


def _with_channels(picture: Picture, channels: int) -> bytes:
    if picture.channels == channels:
        return picture.data
    count = picture.width * picture.height
    made = bytearray(b"\xff" * (count * channels))
    for channel in range(min(channels, 3)):
        source = channel if picture.channels >= 3 else 0
        made[channel::channels] = picture.data[source :: picture.channels]
    return bytes(made)


def _header(picture: Picture) -> bytes:
    colour = _COLOUR_TYPES[picture.channels]
    facts = (picture.width, picture.height, 8, colour, 0, 0, 0)
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", *facts))


def _packed(picture: Picture) -> bytes:
    stride = picture.width * picture.channels
    rows = bytearray((stride + 1) * picture.height)  # each row starts with its filter: 0, none
    for row in range(picture.height):
        start = row * (stride + 1) + 1
        rows[start : start + stride] = picture.data[row * stride : (row + 1) * stride]
    return zlib.compress(rows, _FAST)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _shown(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"
