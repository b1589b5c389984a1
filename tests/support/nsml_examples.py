"""The examples in the styles of NSML's eras: what they are called and how well they score."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example(NamedTuple):
    """An example: its last or best checkpoint, and between which scores a trained one is."""

    name: str
    checkpoint: str
    least: float
    most: float
    untrained: float
    """The score of a guess, or of no training."""
    needs_numpy: bool = False

    @property
    def folder(self) -> Path:
        """The participant's project."""
        return EXAMPLES / self.name

    def make_dataset(self, folder: Path, python: str = sys.executable) -> Path:
        """Write its dataset as its README says, and return the folder."""
        program = str(self.folder / "dataset/make.py")
        subprocess.run([python, program, str(folder)], check=True, timeout=60)
        return folder


ALL = (
    Example("reviews", checkpoint="1", least=0.9, most=1.0, untrained=0.5),
    Example("houses", checkpoint="best", least=0.05, most=0.3, untrained=3.0),
    Example("retrieval", checkpoint="2", least=85.0, most=100.0, untrained=9.0),
    Example("boxes", checkpoint="best", least=0.95, most=1.0, untrained=0.2),
    Example("bikes", checkpoint="6", least=0.5, most=3.5, untrained=20.0),
    Example("shapes", checkpoint="last", least=0.9, most=1.0, untrained=0.25, needs_numpy=True),
)
