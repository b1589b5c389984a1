"""Writes the dataset `reviews`: invented film reviews, a line each, and 1 for praise, 0 for blame.

python make.py FOLDER
"""

import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORDS = {
    1: "wonderful moving superb charming brilliant touching".split(),
    0: "dull clumsy tedious shallow noisy hollow".split(),
}
OTHERS = "the film plot cast was scene score very ending camera story".split()


def reviews(count, rng):
    """Return texts and labels; a tenth of the words with an opinion is of the other kind."""
    texts, labels = [], []
    for _ in range(count):
        label = rng.randrange(2)
        kinds = [label if rng.random() < 0.9 else 1 - label for _ in range(3)]
        words = [rng.choice(WORDS[kind]) for kind in kinds] + rng.sample(OTHERS, 6)
        rng.shuffle(words)
        texts.append(" ".join(words))
        labels.append(str(label))
    return texts, labels


def main(folder):
    """Write train and test, with the owner's programs beside them."""
    rng = random.Random(0)
    for split, count in (("train", 400), ("test", 100)):
        place = Path(folder) / split
        place.mkdir(parents=True, exist_ok=True)
        for kind, lines in zip(("data", "label"), reviews(count, rng)):
            (place / f"{split}_{kind}").write_text("\n".join(lines) + "\n")
    for name in ("data_loader.py", "evaluation.py"):
        shutil.copy(HERE / name, folder)


if __name__ == "__main__":
    main(sys.argv[1])
