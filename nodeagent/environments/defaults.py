"""Default packages, for code that names none: from a file of the site, or one maintained here (`default/`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsml.packages.requirements import RequirementsRefused, as_text, read_requirements

if TYPE_CHECKING:
    from collections.abc import Sequence

_OURS: Final = Path(__file__).with_name("default")
NAMES: Final = ("cpu", "cuda")
"""The files that are maintained here."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The lines of a requirements file; `changed_at`: Unix seconds."""

    lines: Sequence[str] = ()
    changed_at: float = 0.0


def read_defaults(setting: str) -> Defaults:
    """Read the file of the agent's setting `default_requirements`. Raises RequirementsRefused, OSError."""
    if not setting:
        return Defaults()
    path = _OURS / f"{setting}.txt" if setting in NAMES else Path(setting)
    listed = as_text(path.name, path.read_bytes())
    texts = {"requirements.txt": listed}
    found = read_requirements(texts.get)
    if not found.names:
        raise RequirementsRefused(f"{path} names no package")
    return Defaults(found.lines, path.stat().st_mtime)
