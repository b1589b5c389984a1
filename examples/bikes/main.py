"""Lent bikes by hour and warmth: means and a slope, in the way of the competitions of 2019 to 2021."""

import argparse
import csv
import json
import os

import nsml
from nsml import DATASET_PATH


class Model:
    def __init__(self):
        self.means = [0.0] * 24
        self.slope = 0.0

    def fit(self, rows, lent):
        for hour in range(24):
            counts = [count for row, count in zip(rows, lent) if int(row["hour"]) == hour]
            self.means[hour] = sum(counts) / len(counts)

    def step(self, rows, lent, lr):
        """Improve the slope once; return the mean absolute error before."""
        errors = [self.predict(row) - count for row, count in zip(rows, lent)]
        self.slope -= lr * sum(e * float(r["warmth"]) for e, r in zip(errors, rows)) / len(rows)
        return sum(map(abs, errors)) / len(rows)

    def predict(self, row):
        return self.means[int(row["hour"])] + self.slope * float(row["warmth"])


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def bind_nsml(model):
    def save(dir_name, *args, **kwargs):
        os.makedirs(dir_name, exist_ok=True)
        with open(os.path.join(dir_name, "model"), "w") as file:
            json.dump([model.means, model.slope], file)

    def load(dir_name, *args, **kwargs):
        with open(os.path.join(dir_name, "model")) as file:
            model.means, model.slope = json.load(file)

    def infer(test_dir, **kwargs):
        rows = read(os.path.join(test_dir, "test_data"))
        return [(row["id"], round(model.predict(row), 3)) for row in rows]

    nsml.bind(save=save, load=load, infer=infer, use_nsml_legacy=False)


def main(config, local):
    model = Model()
    bind_nsml(model)
    if config.pause:
        nsml.paused(scope=local)
    if config.mode != "train":
        return
    rows = read(os.path.join(DATASET_PATH, "train", "train_data"))
    lent = [float(one["lent"]) for one in read(os.path.join(DATASET_PATH, "train", "train_label"))]
    model.fit(rows, lent)
    for epoch in range(config.num_epochs):
        error = model.step(rows, lent, config.lr)
        nsml.report(summary=True, step=epoch, scope=local, train__error=error, lr=config.lr)
        nsml.save(str(epoch + 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--pause", type=int, default=0)
    parser.add_argument("--mode", type=str, default="train")
    parser.add_argument("--iteration", type=str, default="0")
    main(parser.parse_args(), local=locals())
