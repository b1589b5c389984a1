"""Saving and loading objects for programs that bind no functions: `nsml.bind(model=model)`.

Modules and optimizers of torch, keras models, TensorFlow sessions; anything else by pickle.
"""

from __future__ import annotations

import os
import pickle
import sys

from nsml._extras import copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


def save(folder: str, objects: Dict[str, Any]) -> None:
    """Write each object below `folder` under its name."""
    for name, value in objects.items():
        path = os.path.join(folder, name)
        if _has_state(value):
            _write_state(value.state_dict(), path)
        elif _is_keras(value):
            value.save_weights(path + ".weights.h5")
        elif _is_tensorflow_session(value):
            _tensorflow().train.Saver(max_to_keep=None).save(value, path)
        else:
            with open(path + ".pickle", "wb") as file:
                pickle.dump(value, file)


def load(folder: str, objects: Dict[str, Any]) -> None:
    """Load each object from the files of `save`; plain values (numbers, strings) are unchanged."""
    for name, value in objects.items():
        path = os.path.join(folder, name)
        if _has_state(value):
            value.load_state_dict(_read_state(path))
        elif _is_keras(value):
            value.load_weights(path + ".weights.h5")
        elif _is_tensorflow_session(value):
            _tensorflow().train.Saver().restore(value, path)
        elif isinstance(value, dict) or hasattr(value, "__dict__"):
            with open(path + ".pickle", "rb") as file:
                copy(pickle.load(file), value)  # noqa: S301 - the program's own checkpoint


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _is_keras(value: Any) -> bool:
    return hasattr(value, "save_weights") and hasattr(value, "load_weights")


def _is_tensorflow_session(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ in {"Session", "InteractiveSession"} and "tensorflow" in kind.__module__


def _write_state(state: Any, path: str) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.save(state, path + ".pt")
    else:
        with open(path + ".pickle", "wb") as file:
            pickle.dump(state, file)


def _read_state(path: str) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and os.path.exists(path + ".pt"):
        return torch.load(path + ".pt", map_location="cpu")
    with open(path + ".pickle", "rb") as file:
        return pickle.load(file)  # noqa: S301 - the program's own checkpoint


def _tensorflow() -> Any:
    tensorflow = sys.modules["tensorflow"]
    return getattr(getattr(tensorflow, "compat", None), "v1", tensorflow)
