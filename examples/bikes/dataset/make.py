"""Writes the dataset `bikes`: hourly numbers of lent bikes, invented, as CSV; with a small split for tests of submissions.

python make.py FOLDER
"""

import csv
import math
import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def hours(first_day, days, rng):
    """Return rows of id, hour and warmth, and the lent bikes of each."""
    rows, lent = [], []
    for day in range(first_day, first_day + days):
        warmth = rng.uniform(-1, 1)
        for hour in range(24):
            busy = 20 + 15 * math.sin((hour - 8) / 24 * 2 * math.pi) + 8 * warmth
            rows.append([f"{day}-{hour:02}", hour, round(warmth, 3)])
            lent.append(round(busy + rng.gauss(0, 1), 2))
    return rows, lent


def write(place, header, rows):
    with place.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def main(folder):
    """Write train, test and test_submit, with the owner's programs beside them."""
    rng = random.Random(4)
    for split, kind, days in (
        ("train", "train", 20),
        ("test", "test", 5),
        ("test_submit", "test", 1),
    ):
        place = Path(folder) / split
        place.mkdir(parents=True, exist_ok=True)
        rows, lent = hours(0 if kind == "train" else 100, days, rng)
        write(place / f"{kind}_data", ["id", "hour", "warmth"], rows)
        labels = [[row[0], count] for row, count in zip(rows, lent)]
        write(place / f"{kind}_label", ["id", "lent"], labels)
    for name in ("data_loader.py", "evaluation.py"):
        shutil.copy(HERE / name, folder)


if __name__ == "__main__":
    main(sys.argv[1])
