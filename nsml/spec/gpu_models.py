"""Names of GPU models as one word, for command lines."""

from __future__ import annotations

import re

_MAKER = "nvidia"
_WORDS = re.compile(r"[^\s_-]+")
_INSTANCE = "mig"


def model_word(model: str) -> str:
    """A model as `--gpu-model` takes it without quotes: `A100-SXM4-80GB` of "NVIDIA A100-SXM4-80GB".

    A request means every model that has all of its words, and hyphens part words as blanks do.
    """
    words = model.split()
    return "-".join(words[1:] if len(words) > 1 and words[0].casefold() == _MAKER else words)


def is_meant(model: str, wanted: str) -> bool:
    """Whether a request for `wanted` means a model, as the control plane decides it (controlplane/domain/models.py)."""
    known = set(_WORDS.findall(model.casefold()))
    for one in wanted.split("|"):
        asked = set(_WORDS.findall(one.casefold()))
        if asked <= known and (not asked or _INSTANCE in asked or _INSTANCE not in known):
            return True
    return False
