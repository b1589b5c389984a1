"""What made the history's tables before tables were values: for each database, step by step."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "schemas"


def old_steps(name: str) -> list[str]:
    """The statements of each step; the last of a step notes that it was taken."""
    _, *steps = (FOLDER / name).read_text().split("-- step ")
    return [step.partition("\n")[2] for step in steps]
