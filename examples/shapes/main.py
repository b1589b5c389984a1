"""Shapes of letters: softmax regression in numpy, which goes on from another session.

`--from_session USER/DATASET/N --from_checkpoint NAME` begins with that session's weights (nsml.load), as ensembles and
warm starts did. `nsml.cache` keeps what preprocessing writes.
"""

import argparse
import os

import numpy as np

import nsml
from nsml import DATASET_PATH

CACHED = ["./shapes_data.npy", "./shapes_label.npy"]


def preprocess(output_path, data_path):
    """Write floats between 0 and 1, and the labels."""
    data = np.load(os.path.join(data_path, "train", "train_data"))
    np.save(output_path[0], scaled(data))
    np.save(output_path[1], np.load(os.path.join(data_path, "train", "train_label")))


def scaled(data):
    return data.reshape(len(data), -1) / 100.0


def softmax(values):
    values = np.exp(values - values.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


def bind_model(model):
    def save(path, **kwargs):
        np.save(os.path.join(path, "weights.npy"), model["weights"])

    def load(path, **kwargs):
        model["weights"] = np.load(os.path.join(path, "weights.npy"))

    def infer(data):
        return softmax(scaled(data) @ model["weights"]).argmax(axis=1)

    nsml.bind(save=save, load=load, infer=infer)


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--epochs", type=int, default=5)
    args.add_argument("--lr", type=float, default=0.5)
    args.add_argument("--from_session", type=str, default="")
    args.add_argument("--from_checkpoint", type=str, default="last")
    args.add_argument("--mode", type=str, default="train")
    args.add_argument("--iteration", type=str, default="0")
    args.add_argument("--pause", type=int, default=0)
    config = args.parse_args()

    model = {"weights": np.zeros((36, 4))}
    bind_model(model)
    if config.pause:
        nsml.paused(scope=locals())
    if config.mode == "train":
        if config.from_session:
            nsml.load(checkpoint=config.from_checkpoint, session=config.from_session)
        nsml.cache(preprocess, output_path=CACHED, data_path=DATASET_PATH)
        data, labels = np.load(CACHED[0]), np.load(CACHED[1])
        wanted = np.eye(4)[labels]
        for epoch in range(config.epochs):
            likely = softmax(data @ model["weights"])
            accuracy = (likely.argmax(axis=1) == labels).mean()
            nsml.report(summary=True, step=epoch, accuracy=accuracy)
            model["weights"] -= config.lr * data.T @ (likely - wanted) / len(data)
        nsml.save("last")
