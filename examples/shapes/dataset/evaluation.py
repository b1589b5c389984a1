"""Prints the accuracy of an array of predicted shapes; 0 for one of another length."""

import argparse

import numpy as np


def evaluate(prediction, labels):
    predicted, shapes = np.load(prediction), np.load(labels)
    return float((predicted == shapes).mean()) if predicted.shape == shapes.shape else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--prediction", type=str, default="pred.txt")
    parser.add_argument("--test_label_path", type=str, default="/data/shapes/test/test_label")
    config = parser.parse_args()
    print(evaluate(config.prediction, config.test_label_path))
