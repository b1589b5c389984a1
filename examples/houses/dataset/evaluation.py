"""Prints the root of the mean squared error: less is better. Errors of a prediction are 999999."""

import argparse
import math


def read(path):
    with open(path) as file:
        return [float(line) for line in file]


def score(prediction, labels):
    try:
        predicted, prices = read(prediction), read(labels)
        if len(predicted) != len(prices):
            return 999999
        errors = [(one - other) ** 2 for one, other in zip(predicted, prices)]
        return math.sqrt(sum(errors) / len(errors))
    except ValueError:
        return 999999


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--prediction", type=str, default="pred.txt")
    parser.add_argument("--test_label_path", type=str, default="/data/houses/test/test_label")
    config = parser.parse_args()
    print(score(config.prediction, config.test_label_path))
