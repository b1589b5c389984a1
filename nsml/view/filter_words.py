"""Search words for lines of a list: `mnist "second try" !broken`. Pure."""

from __future__ import annotations

import re
from typing import Final

_TERM: Final = re.compile(r"""(!?)(?:"([^"]*)"?|(\S+))""")


class Words:
    """All words must be in the text, ignoring case; a word after `!` must not.

    Quotes keep spaces together. Every input is valid: during typing it is incomplete.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        found = [
            (one[1] == "!", (one[2] or one[3] or "").casefold()) for one in _TERM.finditer(text)
        ]
        self._terms = [(is_negated, word) for is_negated, word in found if word.strip("!")]

    def take(self, *texts: str) -> bool:
        """Return whether the texts together match."""
        if not self._terms:
            return True
        text = "\n".join(texts).casefold()
        return all((word in text) is not is_negated for is_negated, word in self._terms)
