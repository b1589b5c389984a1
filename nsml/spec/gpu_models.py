"""Names of GPU models as one word, for command lines."""

from __future__ import annotations

_MAKER = "nvidia"


def model_word(model: str) -> str:
    """A model as `--gpu-model` takes it without quotes: `A100-SXM4-80GB` of "NVIDIA A100-SXM4-80GB".

    A request means every model that has all of its words, and hyphens part words as blanks do.
    """
    words = model.split()
    return "-".join(words[1:] if len(words) > 1 and words[0].casefold() == _MAKER else words)
