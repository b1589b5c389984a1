"""Decodes logged images with Pillow, within limits, to colours of half cells.

Images are untrusted: format, number of pixels and number of bytes are checked before any pixel is decoded.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

if TYPE_CHECKING:
    Lines: TypeAlias = "list[list[Segment]]"

MOST_BYTES: Final = 16 * 1024 * 1024
MOST_PIXELS: Final = 32_000_000
MOST_SIDE: Final = 512
"""Pixels of a kept image's longer side: more than a terminal has half cells."""
MOST_SCANNED: Final = 16 * MOST_PIXELS
"""Pixels of all scans of a JPEG: a progressive one has about ten, each decoded over the whole image, even if it has
only seven bytes.
"""
MOST_SEGMENTS: Final = 1_000
"""Exif segments of a JPEG: Pillow joins them one by one."""
FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
UPPER: Final = "▀"
SHADES: Final = " .:-=+*#%@"
_MOST_SCALE: Final = 8
_JPEG: Final = b"\xff\xd8"
_EXIF, _SCAN = b"\xff\xe1", b"\xff\xda"
"""Markers of JPEG segments; in scan data 0xff is never followed by these."""
LACKING: Final = "images are drawn by Pillow, which is not installed: pip install 'nsml[png]'"


class NoPicture(Exception):
    """Why it cannot be drawn."""


def decoded(data: bytes) -> Any:
    """Decode an image, reduced for repeated drawing. Raises NoPicture."""
    if len(data) > MOST_BYTES:
        raise NoPicture("it is too large to be drawn")
    if data.startswith(_JPEG) and data.count(_EXIF) > MOST_SEGMENTS:
        raise NoPicture("it has too many parts to be drawn")
    try:
        from PIL import Image
    except ImportError:
        raise NoPicture(LACKING) from None
    warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if data.startswith(_JPEG):
                _refuse_many_scans(image, data)
            return _reduced(image)
    except NoPicture:
        raise
    # Decoders raise any exception for malicious bytes.
    except Exception as error:  # noqa: BLE001
        raise NoPicture(f"it is no image that can be drawn ({type(error).__name__})") from None


def _refuse_many_scans(image: Any, data: bytes) -> None:
    if image.width * image.height * data.count(_SCAN) > MOST_SCANNED:
        raise NoPicture("it has too many scans to be drawn")


def _reduced(image: Any) -> Any:
    from PIL import Image

    if image.width * image.height > MOST_PIXELS:
        raise NoPicture(f"{image.width} x {image.height} pixels are too many to be drawn")
    image.draft("RGB", (MOST_SIDE, MOST_SIDE))
    found = image.convert("RGBA")
    found.thumbnail((MOST_SIDE, MOST_SIDE))
    ground = Image.new("RGBA", found.size, "#000000")
    return Image.alpha_composite(ground, found).convert("RGB")


def halves(image: Any, *, columns: int, rows: int) -> Lines:
    """Draw an image in cells, with an upper and a lower colour each; fitted to the size, in its proportions."""
    from PIL import Image

    scale = min(columns / image.width, 2 * rows / image.height, _MOST_SCALE)
    width, height = max(int(image.width * scale), 1), max(int(image.height * scale), 1)
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    pixels = image.resize((width, height), how).load()
    return [
        [Segment(UPPER, _style(pixels, x, y, height)) for x in range(width)]
        for y in range(0, height, 2)
    ]


def _style(pixels: Any, x: int, y: int, height: int) -> Style:
    below = Color.from_rgb(*pixels[x, y + 1]) if y + 1 < height else None
    return Style(color=Color.from_rgb(*pixels[x, y]), bgcolor=below)


def shades(image: Any, *, columns: int, rows: int) -> Lines:
    """Draw an image with letters, without colours."""
    from PIL import Image

    scale = min(columns / image.width, 2 * rows / image.height, _MOST_SCALE)
    size = max(int(image.width * scale), 1), max(int(image.height * scale / 2), 1)
    pixels = image.convert("L").resize(size, Image.Resampling.LANCZOS).load()
    return [
        [Segment("".join(SHADES[pixels[x, y] * len(SHADES) // 256] for x in range(size[0])))]
        for y in range(size[1])
    ]
