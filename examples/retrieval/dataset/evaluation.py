"""Prints how many queries of a hundred are of the landmark that was predicted."""

import argparse

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--prediction", type=str, required=True)
    parser.add_argument("--test_label_path", type=str, default="/data/retrieval/test/test_label")
    config = parser.parse_args()
    with open(config.prediction) as predicted, open(config.test_label_path) as labels:
        pairs = list(zip(predicted.read().split(), labels.read().split()))
    print("comparing %d queries" % len(pairs))
    print(100.0 * sum(one == other for one, other in pairs) / len(pairs))
