"""Builds the library of `clock.c`."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("clock.c")


@functools.cache
def built() -> Path | None:
    """The library, once for each run of the tests; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    folder = tempfile.mkdtemp(prefix="nsml-clock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = Path(folder) / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([*command, "-o", place, _SOURCE, "-ldl"], check=True)
    return place


def require_clock() -> Path:
    """Return the library; without a compiler the test is skipped, with NSML_REQUIRE_CLOCK=1 it fails."""
    place = built()
    if place is None:
        why = "no C compiler: install gcc to set the clocks of single programs"
        if os.environ.get("NSML_REQUIRE_CLOCK") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return place
