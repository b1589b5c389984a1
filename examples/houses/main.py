"""Prices of houses: linear regression, with an entry made by Fire as many projects of 2018 had.

The flags are the parameters of `train`: `--pause` arrives as a number or a text.
"""

import inspect
import json
import os
import sys

import nsml

try:
    from fire import Fire
except ImportError:

    def Fire(function):
        """Call it with the options of the command line, as Fire does: each value as the Python that it looks like."""
        words, given = sys.argv[1:], {}
        known = inspect.signature(function).parameters
        while words:
            name, _, value = words.pop(0).lstrip("-").partition("=")
            if name not in known:
                sys.exit("no such option: --" + name)
            value = value or words.pop(0)
            try:
                given[name] = json.loads(value)
            except ValueError:
                given[name] = value
        function(**given)


def read(split, kind):
    with open(os.path.join(nsml.DATASET_PATH, split, split + "_" + kind)) as file:
        return [[float(cell) for cell in line.split(",")] for line in file]


def price(weights, row):
    return weights[0] * row[0] + weights[1] * row[1] + weights[2]


def train(mode="train", pause=0, iteration="0", epochs=5, lr=0.05):
    model = {"weights": [0.0, 0.0, 0.0]}

    def save(dir_name, **kwargs):
        os.makedirs(dir_name, exist_ok=True)
        with open(os.path.join(dir_name, "weights.json"), "w") as file:
            json.dump(model, file)

    def load(dir_name, **kwargs):
        with open(os.path.join(dir_name, "weights.json")) as file:
            model.update(json.load(file))

    def infer(rows):
        return [(0.0, price(model["weights"], row)) for row in rows]

    nsml.bind(save=save, load=load, infer=infer)
    if pause:
        nsml.paused(scope=locals())
    if mode != "train":
        return
    rows, prices = read("train", "data"), [one for (one,) in read("train", "label")]
    best = float("inf")
    for epoch in range(epochs):
        squares = 0.0
        for row, wanted in zip(rows, prices):
            error = price(model["weights"], row) - wanted
            squares += error * error
            for at, value in enumerate((row[0], row[1], 1.0)):
                model["weights"][at] -= lr * error * value
        loss = squares / len(rows)
        nsml.report(**{"summary": True, "step": epoch, "train__loss": loss})
        if loss < best:
            best = loss
            nsml.save("best")


if __name__ == "__main__":
    Fire(train)
