"""Environment variables in the syntax of users: names, files, and words of a command line.

Clients and servers share one grammar.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nsml.common.text_files import decoded, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_BYTES: Final = 32 << 10
"""Limit of all names and values together, each variable with its "=" and its terminator."""

HIDDEN: Final = "***"
"""In place of a value hidden from the reader."""

JOINED: Final = frozenset({"PATH", "PYTHONPATH"})
"""A session's values of these are appended to the platform's."""

_RESERVED: Final = frozenset(
    {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "NVIDIA_VISIBLE_DEVICES",
        "PYTHONUNBUFFERED",
        "RANK",
        "TMPDIR",
        "VIRTUAL_ENV",
        "WORLD_SIZE",
    }
)
_RESERVED_PREFIX: Final = "NSML_"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "`": "`"}
_FLAG: Final = "--env"


class FileRefused(ValueError):
    """An invalid file of variables; `line` counts from 1, 0 is the whole file."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def is_name(text: str) -> bool:
    """Return whether a text is a valid variable name."""
    return _NAME.fullmatch(text) is not None


def is_reserved(name: str) -> bool:
    """Return whether the platform sets a variable for every program; users may not."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIX)


def size_of(variables: Mapping[str, str]) -> int:
    """Return the bytes that count against `MOST_BYTES`."""
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in variables.items())


def parse_file(content: bytes) -> dict[str, str]:
    """Parse a file such as `.env`: NAME=VALUE lines, the last of one name wins.

    Empty lines and lines starting with # are skipped, and so is `export ` before a name. A value may
    be in single quotes (verbatim) or in double quotes, where a backslash escapes quotes, $ and
    itself, and n, r and t as elsewhere; without quotes it ends before ` #`, and blanks around it are
    dropped. Nothing is expanded: $NAME stays $NAME.

    Raises FileRefused, whose text never contains a value.
    """
    try:
        text = decoded(content, "strict")
    except UnicodeDecodeError as error:
        raise FileRefused(
            content[: error.start].count(b"\n") + 1, "it is no text in UTF-8"
        ) from None
    variables: dict[str, str] = {}
    for number, line in enumerate(lines_of(text), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            name, value = _variable(stripped)
        except ValueError as error:
            raise FileRefused(number, str(error)) from None
        variables[name] = value
    if size_of(variables) > MOST_BYTES:
        raise FileRefused(0, f"its variables have more than {MOST_BYTES >> 10} KiB")
    return variables


def _variable(line: str) -> tuple[str, str]:
    """Parse one line to name and value; the ValueError says what is wrong, without the value."""
    name, equals, rest = line.partition("=")
    name = name.rstrip()
    if name.startswith(("export ", "export\t")):
        name = name.removeprefix("export").lstrip()
    if not equals:
        raise ValueError("there is no = in it")
    if not is_name(name):
        # Not shown: within a key of several lines it is a part of the key.
        raise ValueError("what stands before = is not the name of a variable")
    if is_reserved(name):
        raise ValueError(f"{name} is set by the platform")
    value = _value(rest.strip())
    if "\0" in value:
        raise ValueError(f"the value of {name} has a NUL character")
    return name, value


def _value(text: str) -> str:
    quote = text[:1]
    if quote not in {'"', "'"}:
        return "" if quote == "#" else re.split(r"\s+#", text, maxsplit=1)[0]
    value: list[str] = []
    letters = iter(text[1:])
    for letter in letters:
        if letter == quote:
            rest = "".join(letters).strip()
            if rest and not rest.startswith("#"):
                raise ValueError("something stands behind the closing quote")
            return "".join(value)
        if letter == "\\" and quote == '"':
            following = next(letters, "")
            value.append(_ESCAPED.get(following, "\\" + following))
        else:
            value.append(letter)
    raise ValueError("a quote is opened and not closed in the same line")


def without_values(words: Sequence[str]) -> list[str]:
    """Return a command line with `--env NAME=VALUE` reduced to `--env NAME`, once per variable.

    This form is stored and shown: values are stored separately, visible to fewer users.
    """
    return with_values(words, {})


def with_values(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Inverse of `without_values`: variables get their values again, if known."""
    shown: list[str] = []
    seen = set()
    for flag, text, is_name_of_variable in _pieces(words):
        if not is_name_of_variable:
            shown.append(text)
        elif text not in seen:
            # Once: of duplicates the last one counts, and its value is the known one.
            seen.add(text)
            value = f"{text}={environment[text]}" if text in environment else text
            shown += [flag + value] if flag.endswith("=") else [flag, value]
    return shown


def _pieces(words: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield plain words, and for each `--env` its spelling, with the variable's name."""
    left = iter(words)
    for word in left:
        if word == "--":
            yield "", word, False
            break
        if word == _FLAG and (following := next(left, None)) is not None:
            yield _FLAG, following.partition("=")[0], True
        elif word.startswith(f"{_FLAG}="):
            yield f"{_FLAG}=", word.removeprefix(f"{_FLAG}=").partition("=")[0], True
        else:
            yield "", word, False
    for word in left:  # the program's own
        yield "", word, False
