"""Preferences of the user: settings of screens, and typed commands. One file for each platform.

It is editable JSON, readable by its owner alone. A damaged file is ignored, and so are unknown fields.
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
"""Saved commands."""


class PreferencesError(Exception):
    """Preferences cannot be read or written; `message` says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ChartPreferences(msgspec.Struct, frozen=True, kw_only=True):
    """How charts are drawn."""

    axis: Axis = Axis.STEP
    smoothing: float = 0.0
    is_log: bool = False


class ComparePreferences(msgspec.Struct, frozen=True, kw_only=True):
    """How sessions are compared."""

    ignored: tuple[str, ...] = ()
    """Keys whose differences are ignored."""


class LogPreferences(msgspec.Struct, frozen=True, kw_only=True):
    """How logs are shown."""

    is_wrapped: bool = False


class Preferences(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    sessions: Listing = Listing()
    charts: ChartPreferences = ChartPreferences()
    compare: ComparePreferences = ComparePreferences()
    log: LogPreferences = LogPreferences()
    typed: tuple[str, ...] = ()
    """Commands after `:`, the last one last."""


class PreferencesFile:
    """Reads and writes the file of one platform."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._written = Preferences()

    def load(self) -> Preferences:
        """Read the preferences; defaults if there is no file.

        Raises PreferencesError if the file is unusable.
        """
        try:
            with self.file.open("rb") as opened:
                data = opened.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return self._written
        except OSError as error:
            raise PreferencesError(f"cannot read {self.file}: {error.strerror}") from error
        if len(data) > MOST_BYTES:
            raise PreferencesError(f"{self.file} is ignored: it is too large")
        try:
            self._written = msgspec.json.decode(data, type=Preferences)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PreferencesError(f"{self.file} is ignored: {error}") from error
        return self._written

    def save(self, preferences: Preferences) -> None:
        """Replace the file if the preferences have changed.

        Raises PreferencesError if that fails.
        """
        if preferences == self._written:
            return
        self._written = preferences
        text = msgspec.json.format(msgspec.json.encode(preferences), indent=2)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Created with mode 0600, and replaced atomically.
            number, name = tempfile.mkstemp(dir=self.file.parent, prefix=f".{self.file.name}.")
            try:
                with os.fdopen(number, "wb") as opened:
                    opened.write(text + b"\n")
                Path(name).replace(self.file)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise PreferencesError(f"cannot write {self.file}: {error.strerror}") from error
