r"""Paths of files as text: in manifests, records and messages.

On Linux a name is bytes, while manifests and messages contain text in UTF-8. One rule converts between bytes and
text: UTF-8 is kept, except backslashes, control characters and those that change the direction of text. Each
byte of these, and of invalid UTF-8, is `\xHH` in small letters. Each path has exactly one text: any other is
refused, so no escape can mean `/`, `.` or a plain letter.
"""

from __future__ import annotations

import os
import re

# C0, DEL, C1; line and paragraph separators; marks, embeddings, overrides and isolates that
# reorder terminal text; invalid UTF-8, as surrogates; the backslash itself.
# Compiled by `re` at first use, not here: that takes longer than most of `import nsml`.
_ESCAPED = (
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\\\\]"
)
_NAME_ESCAPED = (
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
    r"|\\(?=x[0-9a-f]{2}|ud[0-9a-f]{3})"
)
_ESCAPE = rb"\\x([0-9a-f]{2})"


def path_text(path: str) -> str:
    """Return the text of a native path with `/` as separator."""
    return text_of(os.fsencode(path))


def native_path(text: str) -> str:
    """Return the native path of a text.

    Raises:
        ValueError: it is not the text of a path, or this system cannot have such a name.
    """
    return os.fsdecode(bytes_of(text))


def text_of(path: bytes) -> str:
    """Return the text of a path in bytes."""
    text = path.decode("utf-8", "surrogateescape")
    return text if _is_plain(text) else re.sub(_ESCAPED, _escape, text)


def bytes_of(text: str) -> bytes:
    """Return the bytes of a path from its text.

    Raises:
        ValueError: it is not the text of a path.
    """
    if _is_plain(text):
        return text.encode()
    try:
        path = re.sub(_ESCAPE, lambda found: bytes([int(found[1], 16)]), text.encode())
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None
    if b"\0" in path:
        raise ValueError("it has a NUL character")
    if text_of(path) != text:
        raise ValueError(
            "it has a character that is not escaped, or an escape that stands for none"
        )
    return path


def name_text(name: str) -> str:
    r"""Return the text of a program's name for a checkpoint, a metric or a media file.

    Different names have different texts, which every store and terminal takes: the same characters as in paths are
    escaped, surrogates of no byte as `\udHHH`. A backslash stays, unless it would begin such an escape.
    """
    return name if _is_plain(name) else re.sub(_NAME_ESCAPED, _escape_in_name, name)


def recorded_name(name: str) -> str:
    """Return the name from a record, as `name_text` wrote it. Records of other writers may have characters that stores refuse."""
    if name.isprintable():
        return name
    return re.sub(
        _NAME_ESCAPED,
        lambda found: "\\" if found[0] == "\\" else _escape_in_name(found),
        name,
    )


def _is_plain(text: str) -> bool:
    """Return whether surely nothing is escaped; False may be wrong."""
    return text.isprintable() and "\\" not in text


def _escape_in_name(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xD800 <= code < 0xDC80 or 0xDD00 <= code < 0xE000:
        return f"\\u{code:04x}"
    return _escape(found)


def _escape(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
