"""Command lines to paste: quoting for a shell, and splitting a line again.

The lines work in every POSIX shell: dash, bash, zsh, ksh, busybox.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from nsml.common.text import UNSAFE

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": r"\\", "%": "%%"}
_LETTERS: Final = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "e": 27, "E": 27}
_ARGUMENTS: Final = re.compile(r"--?[\w-]+\s")
"""Several words, such as `--lr 0.1`: no option has such a name."""
_ESCAPED: Final = re.compile(rf"^-|['\"\\!%]|{UNSAFE}")
"""Characters escaped in a printf format. bash expands `!` on its command line also within these quotes."""
_ACTIVE: Final = re.compile(r'["$`\\!]')
"""Special characters within double quotes."""
_QUOTED: Final = re.compile(
    r"\$'((?:[^'\\]|\\.)*)'|\"\$\(printf '((?:[^'\\]|\\.)*)'\)\"|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.",
    re.DOTALL,
)
_HINT: Final = re.compile(
    r"((?:nsml|chmod|export|unset|ss) (?:\$?'(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s'\"]|\s(?!\s))*\S?)(\s{2,})([^#\s].*)"
)
"""A command, and a remark after two or more blanks."""
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)


def shell_word(text: str) -> str:
    r"""Quote one word for a shell, on one line and safe to show on a terminal.

    Control and direction characters, and bytes that are not UTF-8 (as in `os.fsdecode`), are escaped for printf.
    A word that ends in a line feed, which `$(...)` would strip, is written as $'...\n': see `is_posix`.
    """
    if text.endswith("\n"):
        return f"$'{_ESCAPED.sub(_escape, text).replace('%%', '%')}'"
    if re.search(UNSAFE, text):
        return f"\"$(printf '{_ESCAPED.sub(_escape, text)}')\""
    if text.startswith("="):  # zsh replaces =NAME by the path of a program
        return f"'{text[0]}'{shell_word(text[1:]) if text[1:] else ''}"
    if "'" in text and not _ACTIVE.search(text):
        return f'"{text}"'
    return shlex.quote(text)


def shell_line(words: Iterable[str]) -> str:
    """A command line that a shell splits into exactly these words."""
    return " ".join(map(shell_word, words))


def is_posix(words: Iterable[str]) -> bool:
    """Return whether every POSIX shell reads their `shell_line`; else bash, zsh, ksh and busybox do, and dash does not."""
    return not any(word.endswith("\n") for word in words)


def shell_note(words: Iterable[str]) -> str:
    """Return a note for a `shell_line` that not every POSIX shell reads; else ""."""
    if is_posix(words):
        return ""
    return "for bash, zsh, ksh or busybox: dash has no $'...', and a word ends in a newline"


def posix_line(line: str) -> str:
    """Convert a `shell_line` for every POSIX shell: final line feeds of a word are quoted verbatim, over several lines."""
    return _QUOTED.sub(lambda found: found[0] if found[1] is None else _with_ends(found), line)


def _with_ends(found: re.Match[str]) -> str:
    [word] = shlex.split(_plain(found))
    lead = word.rstrip("\n")
    ends = word[len(lead) :]
    return f"{shell_word(lead) if lead else ''}'{ends}'"


def option_words(flag: str, value: str, *, long: str = "") -> list[str]:
    """Return an option with its value; `--memo=-x`, one word, if the value looks like an option.

    Args:
        flag: its name: `-m` or `--memo`.
        value: any text.
        long: its long name, if `flag` is short.
    """
    if value.startswith("-") and not _ARGUMENTS.match(value):
        return [f"{long or flag}={value}"]
    return [flag, value]


def operands(*words: str) -> list[str]:
    """Return positional arguments; after `--` if one looks like an option."""
    return ["--", *words] if any(word.startswith("-") for word in words) else list(words)


def hint_line(text: str) -> str:
    """Make the remark after a hint's command a comment, so that a shell accepts the whole line."""
    command = _HINT.match(text)
    return f"{command[1]}{command[2]}# {command[3]}" if command else text


def shell_split(text: str) -> list[str]:
    """Split a command line, also as `shell_word` writes it; nothing else is expanded.

    Raises ValueError for an unclosed quotation.
    """
    return shlex.split(_QUOTED.sub(_plain, text))


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    if letter in _NAMED:
        return _NAMED[letter]
    is_byte = "\udc80" <= letter <= "\udcff"
    encoded = letter.encode(errors="surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in encoded)


def _plain(match: re.Match[str]) -> str:
    """Return an equivalent that `shlex` can read."""
    quoted, printed = match[1], match[2]
    if printed is not None:
        quoted = printed.replace("%%", "%")
    if quoted is None:
        return match[0]
    read = _ESCAPE.sub(_byte, quoted.encode(errors="surrogateescape"))
    return shlex.quote(read.decode(errors="surrogateescape"))


def _byte(match: re.Match[bytes]) -> bytes:
    escape = match[1].decode("latin-1")
    if escape in _LETTERS:
        return bytes([_LETTERS[escape]])
    if escape[0] in "01234567":
        return bytes([int(escape, 8) & 0xFF])
    if escape[0] == "x" and len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    return match[1] if escape in "'\"\\?" else match[0]
