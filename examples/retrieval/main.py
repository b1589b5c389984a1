"""Landmarks by the nearest mean vector: functions bound by position, and `infer` of two arguments (AI Vision, 2018)."""

import argparse
import os
import pickle

import nsml
from nsml import DATASET_PATH


def read(path):
    with open(path) as file:
        return [[float(cell) for cell in line.split()] for line in file]


def nearest(means, vector):
    """Return the distance of the nearest mean, and its landmark."""
    return min(
        (sum((one - other) ** 2 for one, other in zip(mean, vector)), landmark)
        for landmark, mean in means.items()
    )


def bind_model(means):
    def save(dir_name):
        os.makedirs(dir_name, exist_ok=True)
        with open(os.path.join(dir_name, "model"), "wb") as file:
            pickle.dump(means, file)

    def load(file_path):
        # With one file NSML gave its path, and not the folder.
        with open(file_path, "rb") as file:
            means.update(pickle.load(file))

    def infer(queries, _):
        return [nearest(means, vector) for vector in queries]

    nsml.bind(save, load, infer)


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--epoch", type=int, default=3)
    args.add_argument("--mode", type=str, default="train")
    args.add_argument("--iteration", type=str, default="0")
    args.add_argument("--pause", type=int, default=0)
    config = args.parse_args()

    means = {}
    bind_model(means)
    if config.pause:
        nsml.paused(scope=locals())
    if config.mode == "train":
        root = os.path.join(DATASET_PATH, "train")
        vectors = read(os.path.join(root, "train_data", "query"))
        labels = [int(one) for (one,) in read(os.path.join(root, "train_label"))]
        for epoch in range(config.epoch):
            seen = len(vectors) * (epoch + 1) // config.epoch
            for landmark in set(labels):
                rows = [v for v, label in zip(vectors[:seen], labels) if label == landmark]
                if rows:
                    means[landmark] = [sum(column) / len(rows) for column in zip(*rows)]
            hits = sum(nearest(means, v)[1] == label for v, label in zip(vectors, labels))
            nsml.report(False, step=epoch, **{"train/acc": hits / len(vectors)})
            nsml.save(epoch)
