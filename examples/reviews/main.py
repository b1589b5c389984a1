"""Praise or blame: naive Bayes, in the way of NSML's alpha of 2018.

`save` writes its path as one file, and `load` opens that file.
"""

import argparse
import math
import os
import pickle

import nsml
from nsml import DATASET_PATH, HAS_DATASET, IS_ON_NSML


class Model:
    def __init__(self):
        self.counts = {"0": {}, "1": {}}

    def learn(self, text, label):
        for word in text.split():
            self.counts[label][word] = self.counts[label].get(word, 0) + 1

    def praise(self, text):
        """Return how likely a text is praise."""
        score = 0.0
        for word in text.split():
            score += math.log(self.counts["1"].get(word, 0) + 1)
            score -= math.log(self.counts["0"].get(word, 0) + 1)
        return 1 / (1 + math.exp(-score))


def bind_model(model):
    def save(filename, **kwargs):
        with open(filename, "wb") as file:
            pickle.dump(model.counts, file)

    def load(filename, **kwargs):
        with open(filename, "rb") as file:
            model.counts = pickle.load(file)

    def infer(raw_data, **kwargs):
        likely = [model.praise(text) for text in raw_data]
        return [(one, int(one > 0.5)) for one in likely]

    nsml.bind(save=save, load=load, infer=infer)


def read(split, kind):
    root = DATASET_PATH if HAS_DATASET else "reviews"
    with open(os.path.join(root, split, split + "_" + kind)) as file:
        return file.read().splitlines()


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--mode", type=str, default="train")
    args.add_argument("--pause", type=int, default=0)
    args.add_argument("--iteration", type=str, default="0")
    args.add_argument("--epochs", type=int, default=2)
    config = args.parse_args()

    model = Model()
    bind_model(model)
    if config.pause:
        nsml.paused(scope=locals())
    if config.mode == "train":
        print("on NSML" if IS_ON_NSML else "not on NSML")
        texts, labels = read("train", "data"), read("train", "label")
        size = len(texts) // config.epochs
        for epoch in range(config.epochs):
            part = slice(epoch * size, (epoch + 1) * size)
            for text, label in zip(texts[part], labels[part]):
                model.learn(text, label)
            hits = sum(int(model.praise(t) > 0.5) == int(y) for t, y in zip(texts, labels))
            nsml.report(
                summary=True,
                epoch=epoch,
                epoch_total=config.epochs,
                train__accuracy=hits / len(texts),
                step=epoch,
            )
            nsml.save(epoch)
