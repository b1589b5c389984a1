"""Predicts as a submission does, without a platform: python predict_locally.py MAIN CHECKPOINT OUTPUT.

The program MAIN binds its functions and pauses; CHECKPOINT of the current folder is loaded, and the data loader of the
dataset (NSML_DATASET_PATH) gets its `infer`. Only the standard library of Python 3.8 is used.
"""

import os
import runpy
import sys

import nsml


def write(output, rows):
    with open(output, "w") as file:
        file.writelines("%s\n" % one for _, one in rows)


def main(program, checkpoint, output):
    root = os.environ["NSML_DATASET_PATH"]
    bound = []

    def bind(*functions, **named):
        bound.append(functions[2] if len(functions) > 2 else named["infer"])
        bind_it(*functions, **named)

    bind_it, nsml.bind = nsml.bind, bind
    sys.argv = [program, "--mode", "test", "--pause", "1"]
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")
    nsml.load(checkpoint)
    loader = runpy.run_path(os.path.join(root, "data_loader.py"))
    infer = bound[-1]
    if "feed_infer" in loader:
        loader["feed_infer"](output, infer)
        return
    data = loader["test_data_loader"](root)
    write(output, infer(*data) if isinstance(data, tuple) else infer(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
