"""Builds the library of `nvml.c`, writes what it answers, and puts it in the real one's place."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pynvml
import pytest

_SOURCE = Path(__file__).with_name("nvml.c")


@functools.cache
def built() -> Path | None:
    """The library, once for each run of the tests; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    folder = tempfile.mkdtemp(prefix="nsml-nvml-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = Path(folder) / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", place, _SOURCE]
    subprocess.run(command, check=True)
    return place


def library_in(folder: Path) -> Path:
    """A copy of the library as `folder/libnvidia-ml.so.1`: what it remembers is its own."""
    source = built()
    if source is None:
        pytest.skip("no C compiler: install gcc to test the NVML probe without a GPU")
    return Path(shutil.copy(source, folder / "libnvidia-ml.so.1"))


class FakeDriver:
    """What the library answers, and where the driver shows its boards; see `nvml.c`."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "answers"
        self.proc = folder / "driver"
        (self.proc / "nvidia-caps").mkdir(parents=True)
        (self.proc / "nvidia" / "gpus").mkdir(parents=True)
        self.say()

    def say(self, *lines: str) -> None:
        """From now on it answers by these lines."""
        new = self.script.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.script)

    def boards(self, *names: str) -> None:
        """The kernel shows these boards."""
        for old in (self.proc / "nvidia" / "gpus").iterdir():
            old.rmdir()
        for name in names:
            (self.proc / "nvidia" / "gpus" / name).mkdir()

    def capabilities(self, *lines: str) -> None:
        """The kernel shows these minor numbers of MIG's capabilities."""
        (self.proc / "nvidia-caps" / "mig-minors").write_text("".join(f"{one}\n" for one in lines))


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """pynvml speaks to a fresh library of `folder` until the test ends."""
    driver = FakeDriver(folder)
    monkeypatch.setenv("FAKE_NVML", str(driver.script))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library_in(folder))))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return driver
