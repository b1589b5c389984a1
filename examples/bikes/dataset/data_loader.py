"""The owner's side of a submission: which inputs there are, and the file that is scored."""

import csv
import os

from nsml.constants import DATASET_PATH


def feed_infer(output_file, infer_func):
    """Write what `infer_func` returns for the folder of the test set: `(id, lent)` of each hour."""
    result = infer_func(os.path.join(DATASET_PATH, "test"))
    print("write output", len(result))
    with open(output_file, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "lent"])
        writer.writerows(result)
    if os.stat(output_file).st_size == 0:
        raise AssertionError("output result of inference is nothing")
