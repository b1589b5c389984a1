"""Prints the mean absolute error in bikes: less is better."""

import argparse
import csv


def read(path):
    with open(path, newline="") as file:
        return {row["id"]: float(row["lent"]) for row in csv.DictReader(file)}


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--prediction", type=str, default="pred.txt")
    args.add_argument("--test_label_path", type=str, default="/data/bikes/test/test_label")
    config = args.parse_args()
    predicted, lent = read(config.prediction), read(config.test_label_path)
    print(sum(abs(predicted[one] - count) for one, count in lent.items()) / len(lent))
