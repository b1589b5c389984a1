"""Images: drawn within limits, or refused in a sentence, whatever they hold."""

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tui import pictures
from tui.pictures import MOST_SIDE, NoPicture, decoded, halves, shades


def encoded(size, colour="#ff0000", kind="PNG", mode="RGB"):
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, kind)
    return out.getvalue()


def test_halves_of_cells_have_the_colours_of_the_image():
    image = Image.new("RGB", (2, 2), "#0000ff")
    image.putpixel((0, 0), (255, 0, 0))
    out = io.BytesIO()
    image.save(out, "PNG")
    lines = halves(decoded(out.getvalue()), columns=2, rows=1)
    (first, second) = lines[0]
    assert (first.style.color.triplet.hex, first.style.bgcolor.triplet.hex) == (
        "#ff0000",
        "#0000ff",
    )
    assert second.style.color.triplet.hex == "#0000ff"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_images_of_each_kind_are_drawn_and_large_ones_kept_small(kind):
    image = decoded(encoded((2_000, 500), kind=kind))
    assert image.size == (MOST_SIDE, MOST_SIDE // 4)
    lines = shades(image, columns=40, rows=40)
    assert (len(lines), len(lines[0][0].text)) == (5, 40)


def test_what_is_clear_is_drawn_on_black():
    image = decoded(encoded((2, 2), (255, 255, 255, 0), mode="RGBA"))
    assert image.getpixel((0, 0)) == (0, 0, 0)


def bomb(width, height):
    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def scans(count, side=2_000):
    """A progressive JPEG whose last scan comes `count` times more: fifty bytes, for which all of it is gone over."""
    out = io.BytesIO()
    Image.new("L", (side, side)).save(out, "JPEG", progressive=True)
    whole = out.getvalue()
    tables = whole.rindex(b"\xff\xc4", 0, whole.rindex(b"\xff\xda"))
    return whole[:-2] + whole[tables:-2] * count + whole[-2:]


def exif(count):
    whole = encoded((9, 7), kind="JPEG")
    return whole[:2] + b"\xff\xe1\x00\x0aExif\0\0xx" * count + whole[2:]


def test_a_jpeg_of_a_few_scans_and_segments_is_drawn():
    assert decoded(scans(4)).size == decoded(scans(4, 600)).size == (MOST_SIDE, MOST_SIDE)
    assert decoded(exif(20)).size == (9, 7)


@pytest.mark.parametrize(
    "make",
    [
        lambda: scans(1_000),
        lambda: exif(2_000),
        lambda: bomb(8_000, 8_000),
        lambda: bomb(10_000, 10_000),
        lambda: bomb(2**31 - 1, 2**31 - 1),
        lambda: bomb(0, 7),
        lambda: bomb(100, 100)[:60],
        lambda: b"",
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        lambda: bytes(pictures.MOST_BYTES + 1),
    ],
)
def test_what_is_no_image_or_too_large_is_refused(make):
    with pytest.raises(NoPicture):
        decoded(make())


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(1, 30), st.integers(1, 30))
def test_whatever_an_image_holds_it_fits_its_cells_or_is_refused(junk, place, columns, rows):
    whole = bytearray(encoded((9, 7)))
    at = place % len(whole)
    whole[at : at + len(junk)] = junk
    try:
        image = decoded(bytes(whole))
    except NoPicture as refused:
        assert len(str(refused).splitlines()) == 1  # noqa: PT017
        return
    for draw in (halves, shades):
        lines = draw(image, columns=columns, rows=rows)
        assert len(lines) <= rows
        assert all(sum(len(one.text) for one in line) <= columns for line in lines)
