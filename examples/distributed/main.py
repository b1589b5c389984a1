"""Trains a small network on handwritten digits, on several replicas with a real all-reduce.

On the platform: nsml run -d digits --nodes 2 -a "--epochs 10". Alone: python main.py.

Every replica takes its own part of the images; the gradients of each step are summed over all of
them, so that all make the same step and hold the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import numpy as np
from ring import Reducer, join_gang

import nsml

PIXELS, CLASSES, BRIGHTEST = 64, 10, 16.0
MOMENTUM = 0.9


class Network:
    """A hidden layer of rectified units and a softmax; `weights` is one vector."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        self._shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
        first = rng.normal(0, np.sqrt(2 / PIXELS), PIXELS * hidden)
        second = rng.normal(0, np.sqrt(1 / hidden), hidden * CLASSES)
        self.weights = np.concatenate([first, np.zeros(hidden), second, np.zeros(CLASSES)])
        self._speed = np.zeros_like(self.weights)

    def save(self, folder: str) -> None:
        """Write weights and speed to a file of `folder`."""
        np.savez(Path(folder) / "network.npz", weights=self.weights, speed=self._speed)

    def load(self, folder: str) -> None:
        """Read back what `save` wrote."""
        with np.load(Path(folder) / "network.npz") as state:
            self.weights, self._speed = state["weights"], state["speed"]

    def gradient(self, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
        """Sums over the images of: the gradient of the cross-entropy, and the cross-entropy."""
        out = self._parts()[2]
        hidden, likely = self._activations(images)
        chosen = likely[np.arange(len(labels)), labels]
        error = likely.copy()
        error[np.arange(len(labels)), labels] -= 1
        back = (error @ out.T) * (hidden > 0)
        slopes = [images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
        loss = float(-np.log(chosen + 1e-12).sum())
        return np.concatenate([slope.ravel() for slope in slopes]), loss

    def step(self, gradient: np.ndarray, rate: float) -> None:
        """One step down a mean gradient."""
        self._speed = MOMENTUM * self._speed - rate * gradient
        self.weights = self.weights + self._speed

    def right(self, images: np.ndarray, labels: np.ndarray) -> int:
        """How many images are read right."""
        return int((self._activations(images)[1].argmax(axis=1) == labels).sum())

    def _activations(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        into, into_bias, out, out_bias = self._parts()
        hidden = np.maximum(0, images @ into + into_bias)
        scores = hidden @ out + out_bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def _parts(self) -> list[np.ndarray]:
        cuts = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        return [
            part.reshape(shape)
            for part, shape in zip(np.split(self.weights, cuts), self._shapes, strict=True)
        ]


def read_training_data(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, shape (n, 64), and their digits."""
    images = np.loadtxt(root / "train" / "train_data", delimiter=",") / BRIGHTEST
    return images, np.loadtxt(root / "train" / "train_label", dtype=int)


def train(network: Network, gang: Reducer, root: Path, config: argparse.Namespace) -> None:
    """Train to the last epoch; rank 0 reports the loss of all, each replica its own times."""
    images, labels = read_training_data(root)
    for epoch in nsml.steps(1, config.epochs + 1):
        # All draw the same order, and each takes every world-th batch of it.
        order = np.random.default_rng([config.seed, epoch]).permutation(len(labels))
        per_step = config.batch * gang.world
        loss = right = 0.0
        computing_s = reducing_s = 0.0
        for start in range(0, len(order), per_step):
            chosen = order[start : start + per_step][gang.rank :: gang.world]
            began = time.perf_counter()
            gradient, own_loss = network.gradient(images[chosen], labels[chosen])
            own_right = network.right(images[chosen], labels[chosen])
            told = np.append(gradient, [own_loss, own_right, len(chosen)])
            computed = time.perf_counter()
            summed = gang.sum(told)
            reducing_s += time.perf_counter() - computed
            network.step(summed[:-3] / summed[-1], config.lr)
            loss, right = loss + summed[-3], right + summed[-2]
            computing_s += time.perf_counter() - began
        computing_s -= reducing_s
        if config.pause_s:
            time.sleep(config.pause_s)
        values = {"seconds__compute": computing_s, "seconds__reduce": reducing_s}
        if gang.rank == 0:
            values |= {"train__loss": loss / len(order), "train__accuracy": right / len(order)}
        nsml.report(summary=True, step=epoch, epoch=epoch, epoch_total=config.epochs, **values)
        print(
            f"epoch {epoch:3}/{config.epochs}  loss of all {loss / len(order):.4f}"
            f"  compute {computing_s:.3f} s  reduce {reducing_s:.3f} s"
        )
        if gang.rank == 0:
            nsml.save(epoch)


def check_same_weights(network: Network, gang: Reducer) -> None:
    """Whether all replicas hold the same weights, to the last bit."""
    digest = hashlib.sha256(network.weights.tobytes()).digest()
    own = np.zeros((gang.world, len(digest)))
    own[gang.rank] = list(digest)
    everybodys = gang.sum(own.ravel()).reshape(own.shape)
    assert (everybodys == everybodys[gang.rank]).all(), "the replicas hold different weights"
    print(f"all {gang.world} replicas hold the same weights, {digest.hex()[:12]}")


def main() -> None:
    """Read the command line, meet the others, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=32, help="images a step, of each replica")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=["auto", "gloo", "sockets"], default="auto")
    parser.add_argument("--pause-s", type=float, default=0.0, help="wait after each epoch")
    config = parser.parse_args()

    gang = join_gang(config.backend)
    print(f"rank {gang.rank} of {gang.world}, {type(gang).__name__.lower()}", flush=True)
    root = Path(nsml.DATASET_PATH or Path(__file__).parent.parent / "digits" / "data")
    network = Network(config.hidden, np.random.default_rng(config.seed))
    # In every replica: after an interruption all load the same checkpoint, and go on at the same epoch.
    nsml.bind(save=network.save, load=network.load)
    train(network, gang, root, config)
    check_same_weights(network, gang)
    gang.close()


if __name__ == "__main__":
    main()
