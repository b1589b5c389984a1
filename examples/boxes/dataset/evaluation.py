"""Prints the mean overlap (intersection over union) of predicted and true boxes; -1 for a prediction of other pictures."""

import argparse
import json


def overlap(one, other):
    width = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    height = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    both = max(width, 0) * max(height, 0)
    return both / (one[2] * one[3] + other[2] * other[3] - both)


def score(prediction, labels):
    with open(prediction) as file:
        predicted = [json.loads(line) for line in file]
    with open(labels) as file:
        boxes = json.load(file)
    if {one["name"] for one in predicted} != set(boxes):
        return -1
    return sum(overlap(one["box"], boxes[one["name"]]) for one in predicted) / len(boxes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--prediction", type=str, required=True)
    parser.add_argument("--test_label_path", type=str, required=True)
    config = parser.parse_args()
    print(score(config.prediction, config.test_label_path))
