"""Text files of any program: with a byte order mark, in UTF-16, with the line ends of any system."""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LINE_END = re.compile(r"\r\n|\n|\r")


def decoded(content: bytes, errors: str = "surrogateescape") -> str:
    """Decode a file, without a byte order mark: UTF-16 and UTF-32 by their mark, UTF-8 without one.

    `errors`: as for `bytes.decode`; by default a byte that is not UTF-8 becomes a surrogate, as in file names.
    Raises UnicodeDecodeError as `errors` says, and for damaged UTF-16.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            if encoding != "utf-8" and errors == "surrogateescape":
                errors = "strict"  # half a character is no byte of a name
            return content[len(mark) :].decode(encoding, errors)
    return content.decode("utf-8", errors)


def file_content(path: Path) -> bytes:
    """Read a regular file; links are followed. Raises OSError.

    A pipe, at which a read could block forever, and a device are refused.
    """
    with open(path, "rb", opener=_opened_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return file.read()


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def toml_of(content: bytes) -> dict[str, Any]:
    """Parse a TOML file. Raises ValueError: UnicodeDecodeError, tomllib.TOMLDecodeError."""
    import tomllib

    return tomllib.loads(decoded(content, "strict"))


def lines_of(text: str) -> list[str]:
    """Split a text into lines; `str.splitlines` would split at form feeds and separators in names, too."""
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]
