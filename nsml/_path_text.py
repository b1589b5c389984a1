r"""Paths of files as text: in manifests, records and messages.

On Linux a name is bytes, while manifests and messages hold text in UTF-8. One rule leads from bytes to text and
back: what is UTF-8 stands as it is, but for backslashes, control characters and those that change the direction
of text. Of these, and of what is no UTF-8, each byte is `\xHH` in small letters. Each path has exactly one text:
any other is refused, so no escape can stand for `/`, `.` or a plain letter.
"""

from __future__ import annotations

import os
import re

# C0, DEL, C1; line and paragraph separators; marks, embeddings, overrides and isolates that
# reorder what a terminal shows; what is no UTF-8, as surrogates; the backslash itself.
_ESCAPED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\\\\]"
)
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")


def path_text(path: str) -> str:
    """The text of a path that is separated by `/`, as the system gives it."""
    return text_of(os.fsencode(path))


def native_path(text: str) -> str:
    """The path of a text, as functions of the system take it.

    Raises:
        ValueError: it is not the text of a path, or this system has no such name.
    """
    return os.fsdecode(bytes_of(text))


def text_of(path: bytes) -> str:
    """The text of a path in bytes."""
    text = path.decode("utf-8", "surrogateescape")
    return _ESCAPED.sub(_escape, text) if _ESCAPED.search(text) else text


def bytes_of(text: str) -> bytes:
    """The bytes of the path with this text.

    Raises:
        ValueError: it is not the text of a path.
    """
    if not _ESCAPED.search(text):
        return text.encode()
    try:
        path = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), text.encode())
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None
    if b"\0" in path:
        raise ValueError("it has a NUL character")
    if text_of(path) != text:
        raise ValueError(
            "it has a character that is not escaped, or an escape that stands for none"
        )
    return path


def _escape(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
