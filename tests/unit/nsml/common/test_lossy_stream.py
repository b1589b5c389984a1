"""Logs never stop what writes them."""

import io
from contextlib import suppress

from nsml.common.lossy_stream import LossyText


def test_what_the_stream_takes_is_written() -> None:
    stream = io.StringIO()
    lossy = LossyText(stream)
    assert lossy.write("line\n") == 5
    lossy.flush()
    assert stream.getvalue() == "line\n"


def test_a_full_disk_is_no_error() -> None:
    full = open("/dev/full", "w", buffering=1)  # noqa: PTH123, SIM115 - a device; closing it fails
    lossy = LossyText(full)
    assert lossy.write("line\n") == 5
    lossy.flush()
    lossy.write("x" * 100_000)
    with suppress(OSError):
        full.close()


def test_a_closed_stream_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    LossyText(stream).write("line\n")
