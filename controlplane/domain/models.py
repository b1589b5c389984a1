"""Names of GPU models: match them with requests."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WORDS: Final = re.compile(r"[^\s_-]+")
_INSTANCE: Final = "mig"
_OR: Final = "|"


@lru_cache(maxsize=4096)
def is_model(model: str, wanted: str) -> bool:
    """Return whether a device of this model matches a request.

    All words of the request must be words of the model: `A100` and `a100-80gb` match "NVIDIA
    A100-SXM4-80GB". Words end at blanks, hyphens and underscores, regardless of letter case. A MIG
    instance, which is a part of a device of its model, matches only if the request says MIG. A request
    may name alternatives, separated by `|`. An empty request matches every model.
    """
    known = words_of(model)
    return any(_is_meant(known, words_of(one)) for one in alternatives_of(wanted))


def alternatives_of(wanted: str) -> list[str]:
    """Split a request into its alternatives: `A100` and `H100` of "A100|H100"."""
    return wanted.split(_OR)


def _is_meant(known: frozenset[str], asked: frozenset[str]) -> bool:
    return asked <= known and (not asked or _INSTANCE in asked or _INSTANCE not in known)


def words_of(text: str) -> frozenset[str]:
    """Return the words of a name, casefolded; none if it has only separators."""
    return frozenset(_WORDS.findall(text.casefold()))
