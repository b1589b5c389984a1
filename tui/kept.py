"""What is kept from one time to the next: how screens show things, and what was typed. One file for each platform.

It is JSON for people to edit, its owner's alone. What is damaged is ignored, and what is not known in it left out.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from nsml.view.series import Axis
from tui.listing import Listing

MOST_BYTES: Final = 256 * 1024
MOST_TYPED: Final = 200
"""Commands that are kept."""


class KeptError(Exception):
    """What is kept cannot be read, or not be written; `message` says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ChartsKept(msgspec.Struct, frozen=True, kw_only=True):
    """How charts are drawn."""

    axis: Axis = Axis.STEP
    smoothing: float = 0.0
    is_log: bool = False


class CompareKept(msgspec.Struct, frozen=True, kw_only=True):
    """How sessions are compared."""

    ignored: tuple[str, ...] = ()
    """Keys whose differences say nothing."""


class LogKept(msgspec.Struct, frozen=True, kw_only=True):
    """How logs are shown."""

    is_wrapped: bool = False


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    sessions: Listing = Listing()
    charts: ChartsKept = ChartsKept()
    compare: CompareKept = CompareKept()
    log: LogKept = LogKept()
    typed: tuple[str, ...] = ()
    """Commands behind `:`, the last one last."""


class Keeper:
    """Reads and writes the file of one platform."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._written = Kept()

    def load(self) -> Kept:
        """What is kept.

        Raises KeptError where that cannot be used: then nothing is.
        """
        try:
            with self.file.open("rb") as opened:
                data = opened.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return self._written
        except OSError as error:
            raise KeptError(f"cannot read {self.file}: {error.strerror}") from error
        if len(data) > MOST_BYTES:
            raise KeptError(f"{self.file} is ignored: it is too large")
        try:
            self._written = msgspec.json.decode(data, type=Kept)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise KeptError(f"{self.file} is ignored: {error}") from error
        return self._written

    def save(self, kept: Kept) -> None:
        """Write it in place of what was there, where it is another.

        Raises KeptError where that cannot be done.
        """
        if kept == self._written:
            return
        self._written = kept
        text = msgspec.json.format(msgspec.json.encode(kept), indent=2)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Made 0600, and there as a whole or not at all.
            number, name = tempfile.mkstemp(dir=self.file.parent, prefix=f".{self.file.name}.")
            try:
                with os.fdopen(number, "wb") as opened:
                    opened.write(text + b"\n")
                Path(name).replace(self.file)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise KeptError(f"cannot write {self.file}: {error.strerror}") from error
