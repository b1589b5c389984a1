"""Words that are looked for in the lines of a list: `mnist "second try" !broken`. Pure."""

from __future__ import annotations

import re
from typing import Final

_TERM: Final = re.compile(r"""(!?)(?:"([^"]*)"?|(\S+))""")


class Words:
    """All of them must be in what is looked at, letter case aside; one behind `!` must not.

    Quotes keep spaces together. Whatever is typed says something: while it is, half of it is there.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        found = [
            (one[1] == "!", (one[2] or one[3] or "").casefold()) for one in _TERM.finditer(text)
        ]
        self._terms = [(is_negated, word) for is_negated, word in found if word.strip("!")]

    def take(self, *texts: str) -> bool:
        """Whether they are in any of these texts, or in none of them."""
        if not self._terms:
            return True
        text = "\n".join(texts).casefold()
        return all((word in text) is not is_negated for is_negated, word in self._terms)
