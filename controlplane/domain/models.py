"""Names of GPU models: which of them a request for one means."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WORDS: Final = re.compile(r"[^\s_-]+")
_INSTANCE: Final = "mig"
_OR: Final = "|"


@lru_cache(maxsize=4096)
def is_model(model: str, wanted: str) -> bool:
    """Whether a device of this model is what was asked for.

    It is when every word of the request is a word of the model: `A100` and `a100-80gb` mean "NVIDIA
    A100-SXM4-80GB". Words end at blanks, hyphens and underscores; letter case does not count. A MIG
    instance, which is a part of a device of its model, is meant by a request that says MIG alone. A
    request may name several models, parted by `|`: any of them is meant. An empty request means every model.
    """
    known = words_of(model)
    return any(_is_meant(known, words_of(one)) for one in alternatives_of(wanted))


def alternatives_of(wanted: str) -> list[str]:
    """The models that a request names, any of which is meant: `A100` and `H100` of "A100|H100"."""
    return wanted.split(_OR)


def _is_meant(known: frozenset[str], asked: frozenset[str]) -> bool:
    return asked <= known and (not asked or _INSTANCE in asked or _INSTANCE not in known)


def words_of(text: str) -> frozenset[str]:
    """The words of a name, letter case aside; none where a name is of separators alone."""
    return frozenset(_WORDS.findall(text.casefold()))
