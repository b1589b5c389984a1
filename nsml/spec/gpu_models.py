"""Names of GPU models as one word, for command lines."""

from __future__ import annotations

import re

_MAKER = "nvidia"
_WORDS = re.compile(r"[^\s_-]+")
_INSTANCE = "mig"


def model_word(model: str) -> str:
    """Return a model as `--gpu-model` accepts it unquoted: `A100-SXM4-80GB` for "NVIDIA A100-SXM4-80GB".

    A request matches every model with all of its words; hyphens separate words, as blanks do.
    """
    words = model.split()
    return "-".join(words[1:] if len(words) > 1 and words[0].casefold() == _MAKER else words)


def is_meant(model: str, wanted: str) -> bool:
    """Return whether a request for `wanted` matches a model, as in the control plane (controlplane/domain/models.py)."""
    known = set(_WORDS.findall(model.casefold()))
    for one in wanted.split("|"):
        asked = set(_WORDS.findall(one.casefold()))
        if asked <= known and (not asked or _INSTANCE in asked or _INSTANCE not in known):
            return True
    return False
