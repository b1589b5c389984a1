"""Trains a small network on handwritten digits: 64 pixels, one hidden layer, ten classes.

On the platform: nsml run -d digits -a "--epochs 20 --lr 0.1". Anywhere else: python main.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

import nsml

PIXELS = 64
CLASSES = 10
BRIGHTEST = 16.0
MOMENTUM = 0.9


class Split(NamedTuple):
    """Images, float in 0..1 of shape (n, 64), and their digits, int of shape (n,)."""

    images: np.ndarray
    labels: np.ndarray


class Network:
    """A hidden layer of rectified units and a softmax, trained by stochastic gradient descent."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        self.weights = {
            "in": rng.normal(0, np.sqrt(2 / PIXELS), (PIXELS, hidden)),
            "in_bias": np.zeros(hidden),
            "out": rng.normal(0, np.sqrt(1 / hidden), (hidden, CLASSES)),
            "out_bias": np.zeros(CLASSES),
        }
        self.speed = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self.epoch = 0
        self.best_accuracy = 0.0

    def activations(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hidden units and the probabilities of the ten digits, a row for each image."""
        hidden = np.maximum(0, images @ self.weights["in"] + self.weights["in_bias"])
        scores = hidden @ self.weights["out"] + self.weights["out_bias"]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def step(self, batch: Split, rate: float) -> None:
        """One step down the gradient of the mean cross-entropy of a batch."""
        hidden, error = self.activations(batch.images)
        error[np.arange(len(batch.labels)), batch.labels] -= 1
        error /= len(batch.labels)
        back = (error @ self.weights["out"].T) * (hidden > 0)
        gradient = {
            "in": batch.images.T @ back,
            "in_bias": back.sum(axis=0),
            "out": hidden.T @ error,
            "out_bias": error.sum(axis=0),
        }
        for name, slope in gradient.items():
            self.speed[name] = MOMENTUM * self.speed[name] - rate * slope
            self.weights[name] += self.speed[name]

    def measure(self, split: Split) -> tuple[float, float]:
        """Mean cross-entropy and the share of digits that are read right."""
        _, likely = self.activations(split.images)
        chosen = likely[np.arange(len(split.labels)), split.labels]
        right = likely.argmax(axis=1) == split.labels
        return float(-np.log(chosen + 1e-12).mean()), float(right.mean())


def bind_network(network: Network) -> None:
    """Tell nsml how this network is saved, loaded and asked."""

    def save(path: str) -> None:
        state = {f"weight_{name}": value for name, value in network.weights.items()}
        state |= {f"speed_{name}": value for name, value in network.speed.items()}
        progress = np.array([network.epoch, network.best_accuracy])
        np.savez(Path(path) / "network.npz", progress=progress, **state)

    def load(path: str) -> None:
        with np.load(Path(path) / "network.npz") as state:
            network.weights = {name: state[f"weight_{name}"] for name in network.weights}
            network.speed = {name: state[f"speed_{name}"] for name in network.speed}
            network.epoch = int(state["progress"][0])
            network.best_accuracy = float(state["progress"][1])

    def infer(root: str) -> list[tuple[float, int]]:
        images = read_images(Path(root) / "test_data")
        _, likely = network.activations(images)
        return [(float(row.max()), int(row.argmax())) for row in likely]

    nsml.bind(save=save, load=load, infer=infer)


def read_images(path: Path) -> np.ndarray:
    """One image a line: 64 comma-separated shades from 0 to 16."""
    return np.loadtxt(path, delimiter=",") / BRIGHTEST


def read_split(root: Path, name: str) -> Split:
    """`train` or `test` of the dataset."""
    labels = np.loadtxt(root / name / f"{name}_label", dtype=int)
    return Split(read_images(root / name / f"{name}_data"), labels)


def set_apart(split: Split, rng: np.random.Generator) -> tuple[Split, Split]:
    """Keep a sixth for validation: what training may look at is the training data alone."""
    order = rng.permutation(len(split.labels))
    cut = len(order) // 6
    validation, training = order[:cut], order[cut:]
    return (
        Split(split.images[training], split.labels[training]),
        Split(split.images[validation], split.labels[validation]),
    )


def train(network: Network, root: Path, config: argparse.Namespace) -> None:
    """Train to the last epoch, reporting each one and saving each fifth and the best."""
    training, validation = set_apart(read_split(root, "train"), np.random.default_rng(config.seed))
    for epoch in nsml.steps(1, config.epochs + 1):
        network.epoch = epoch
        # A generator for each epoch, so that a resumed session repeats the same order.
        order = np.random.default_rng([config.seed, network.epoch]).permutation(
            len(training.labels)
        )
        for start in range(0, len(order), config.batch):
            chosen = order[start : start + config.batch]
            network.step(Split(training.images[chosen], training.labels[chosen]), config.lr)
        loss, accuracy = network.measure(training)
        validation_loss, validation_accuracy = network.measure(validation)
        nsml.report(
            summary=True,
            step=network.epoch,
            epoch=network.epoch,
            epoch_total=config.epochs,
            train__loss=loss,
            train__accuracy=accuracy,
            val__loss=validation_loss,
            val__accuracy=validation_accuracy,
            lr=config.lr,
            scope=locals(),
        )
        print(
            f"epoch {network.epoch:3}/{config.epochs}  train loss {loss:.4f}"
            f"  train accuracy {accuracy:.4f}  val accuracy {validation_accuracy:.4f}"
        )
        # Saved last: what a checkpoint holds of an epoch is all of it.
        if validation_accuracy > network.best_accuracy:
            network.best_accuracy = validation_accuracy
            nsml.save("best")
        if network.epoch % 5 == 0:
            nsml.save(network.epoch)


def test(network: Network, root: Path) -> None:
    """Report the accuracy on the held-out digits, where they can be seen."""
    if not (root / "test" / "test_label").exists():
        print("the held-out digits are not visible here")
        return
    loss, accuracy = network.measure(read_split(root, "test"))
    nsml.report(summary=True, step=network.epoch, test__loss=loss, test__accuracy=accuracy)
    print(f"held-out digits: loss {loss:.4f}  accuracy {accuracy:.4f}")


def main() -> None:
    """Read the command line, then train or test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="train", help="train or test (reserved)")
    parser.add_argument("--pause", type=int, default=0, help="begin from a checkpoint (reserved)")
    parser.add_argument("--iteration", default="0", help="which checkpoint (reserved)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    config = parser.parse_args()

    network = Network(config.hidden, np.random.default_rng(config.seed))
    bind_network(network)
    root = Path(nsml.DATASET_PATH or Path(__file__).parent / "data")
    if config.pause:
        nsml.paused(scope=locals())
    if config.mode == "train":
        train(network, root, config)
    test(network, root)


if __name__ == "__main__":
    main()
