"""Writes the dataset `houses`: sizes and ages of invented houses, comma-separated, and their prices.

python make.py FOLDER
"""

import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def houses(count, rng):
    """Return rows and prices: linear in size and age, with noise."""
    rows, prices = [], []
    for _ in range(count):
        size, age = rng.uniform(0.2, 2.0), rng.uniform(0.0, 1.0)
        rows.append(f"{size:.4f},{age:.4f}")
        prices.append(f"{3 * size - 1.5 * age + 1 + rng.gauss(0, 0.1):.4f}")
    return rows, prices


def main(folder):
    """Write train and test, with the owner's programs beside them."""
    rng = random.Random(1)
    for split, count in (("train", 300), ("test", 100)):
        place = Path(folder) / split
        place.mkdir(parents=True, exist_ok=True)
        for kind, lines in zip(("data", "label"), houses(count, rng)):
            (place / f"{split}_{kind}").write_text("\n".join(lines) + "\n")
    for name in ("data_loader.py", "evaluation.py"):
        shutil.copy(HERE / name, folder)


if __name__ == "__main__":
    main(sys.argv[1])
