"""Writes the dataset `retrieval`: vectors of invented pictures of twelve landmarks, and which landmark each shows.

python make.py FOLDER
"""

import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LANDMARKS, CELLS = 12, 8


def pictures(count, middles, rng):
    """Return lines of vectors, and of landmarks."""
    chosen = [rng.randrange(LANDMARKS) for _ in range(count)]
    rows = [
        " ".join(f"{value + rng.gauss(0, 0.6):.4f}" for value in middles[one]) for one in chosen
    ]
    return rows, [str(one) for one in chosen]


def main(folder):
    """Write train and test, with the owner's programs beside them."""
    rng = random.Random(2)
    middles = [[rng.uniform(-2, 2) for _ in range(CELLS)] for _ in range(LANDMARKS)]
    for split, count in (("train", 360), ("test", 120)):
        place = Path(folder) / split
        data = place / f"{split}_data"
        data.mkdir(parents=True, exist_ok=True)
        rows, landmarks = pictures(count, middles, rng)
        (data / "query").write_text("\n".join(rows) + "\n")
        (data / "reference").write_text("\n".join(pictures(24, middles, rng)[0]) + "\n")
        (place / f"{split}_label").write_text("\n".join(landmarks) + "\n")
    for name in ("data_loader.py", "evaluation.py"):
        shutil.copy(HERE / name, folder)


if __name__ == "__main__":
    main(sys.argv[1])
