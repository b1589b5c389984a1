"""Labels of sessions, KEY=VALUE: what a user groups sessions by. Both ends hold to these rules."""

from __future__ import annotations

import re
from typing import Final

LABEL: Final = "label."
"""What the name of one label begins with where names of other values may stand, too."""
MOST_LABELS: Final = 32
MOST_CHARACTERS: Final = 63
"""Of a key, and of a value."""
RULE: Final = f"a key has letters of English, digits and . _ - / inside, a value is text; {MOST_CHARACTERS} characters each"
_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")


def is_key(text: str) -> bool:
    """Whether it can be the key of a label."""
    return len(text) <= MOST_CHARACTERS and _KEY.fullmatch(text) is not None


def is_value(text: str) -> bool:
    """Whether it can be the value of a label: text that is seen as it is, without blanks around it."""
    return 0 < len(text) <= MOST_CHARACTERS and text.isprintable() and text == text.strip()
