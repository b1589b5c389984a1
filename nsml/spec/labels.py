"""Labels of sessions, KEY=VALUE, to group them by. Rules for clients and servers."""

from __future__ import annotations

import re
from typing import Final

LABEL: Final = "label."
"""Prefix of a label where names of other values are allowed, too."""
MOST_LABELS: Final = 32
MOST_CHARACTERS: Final = 63
"""Of a key, and of a value."""
FORM_RULE: Final = f"has 1 to {MOST_CHARACTERS} of A-Z a-z 0-9 and, between these, . _ - /"
"""Completes a sentence whose subject is the name."""
KEY_RULE: Final = f"a key {FORM_RULE}"
_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")


def is_key(text: str) -> bool:
    """Return whether a text is a valid key."""
    return len(text) <= MOST_CHARACTERS and _KEY.fullmatch(text) is not None


def value_error(text: str) -> str:
    """Return which rule a label's value breaks; "" if none: it is shown verbatim, without blanks around it."""
    if not text:
        return "it is empty"
    if len(text) > MOST_CHARACTERS:
        return f"it has {len(text):,} characters, and {MOST_CHARACTERS} are the most"
    if not text.isprintable():
        return "it has characters that cannot be printed"
    return "" if text == text.strip() else "it begins or ends with a blank"
