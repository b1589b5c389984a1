"""Where the bright box is: the best threshold, by trying. Its predictions are JSON, a text for each picture."""

import argparse
import json
import os

import nsml
from nsml import DATASET_PATH

THRESHOLDS = range(40, 200, 20)


def box_of(picture, threshold):
    """Return left, top, width and height of what is brighter."""
    bright = [(x, y) for y, row in enumerate(picture) for x, it in enumerate(row) if it > threshold]
    if not bright:
        return [0, 0, 1, 1]
    xs, ys = [x for x, _ in bright], [y for _, y in bright]
    return [min(xs), min(ys), max(xs) - min(xs) + 1, max(ys) - min(ys) + 1]


def bind_model(model):
    def save(path, *args, **kwargs):
        with open(os.path.join(path, "model.json"), "w") as file:
            json.dump(model, file)

    def load(path, *args, **kwargs):
        with open(os.path.join(path, "model.json")) as file:
            model.update(json.load(file))

    def infer(data):
        found = []
        for name, picture in data:
            box = box_of(picture, model["threshold"])
            found.append((1.0, json.dumps({"name": name, "box": box})))
        return found

    nsml.bind(save=save, load=load, infer=infer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", type=str, default="train")
    parser.add_argument("--pause", type=int, default=0)
    parser.add_argument("--iteration", type=str, default="0")
    config = parser.parse_args()

    model = {"threshold": 0}
    bind_model(model)
    nsml.save("0")  # some projects saved before they paused
    if config.pause:
        nsml.paused(scope=locals())
    if config.mode == "train":
        root = os.path.join(DATASET_PATH, "train")
        with open(os.path.join(root, "train_label")) as file:
            boxes = json.load(file)
        best = -1.0
        for step, threshold in enumerate(THRESHOLDS):
            exact = 0
            for name, box in boxes.items():
                with open(os.path.join(root, "train_data", name)) as file:
                    exact += box_of(json.load(file), threshold) == box
            nsml.report(summary=True, step=step, threshold=threshold, exact=exact / len(boxes))
            if exact > best:
                best, model["threshold"] = exact, threshold
                nsml.save("best")
