"""The grammar of names, and references to sessions."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import lru_cache

from controlplane.domain.errors import InvalidRequest

NO_DATASET = "None"
"""Middle part of the name of a session without a dataset."""

MOST_CHECKPOINT_NAME = 512
"""Maximum bytes in the name of a checkpoint, which may be any text."""

LONGEST_REFERENCE = 256
"""Maximum characters in a reference to a session: more than any name has."""

FURTHEST_BACK = 1_000
"""Maximum K in @K: to find one, all newer ones are read."""

_USER = re.compile(r"(?=.{1,32}\Z)[a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)*")
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NODE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_USER_RULE = "1 to 32 of a-z 0-9 _ -, with single dots between them, beginning with a letter"
_REQUEST = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[1-9][0-9]{0,10}")
_ID = re.compile(r"s[a-z2-7]{16}")


def check_user(name: str) -> str:
    """Check and return a user name: 1 to 32 of a-z 0-9 _ -, with single dots between, beginning with a letter."""
    return _check(_USER, name, "user name", _USER_RULE)


def is_user(text: str) -> bool:
    """Return whether it is a valid user name."""
    return _USER.fullmatch(text) is not None


def check_project(name: str) -> str:
    """Check and return a project name: as of a user, whose own project has the same name."""
    if not _USER.fullmatch(name):
        words = re.findall(r"[a-z0-9_.]*[a-z0-9_]", name.lower().replace("..", "."))
        meant = "-".join(words).lstrip("0123456789_-")[:32].rstrip("-") or "vision"
        raise InvalidRequest(
            f"{name[:80]!r} is not a project name",
            why=_USER_RULE,
            attempt=f"nsml project create {meant}",
        )
    return name


def check_dataset(name: str) -> str:
    """Check and return a dataset name."""
    if name == NO_DATASET or ".." in name:
        raise InvalidRequest(f"{name!r} cannot be the name of a dataset")
    return _check(
        _DATASET,
        name,
        "dataset name",
        "1 to 64 of A-Z a-z 0-9 _ - ., beginning with a letter or a digit",
    )


def check_node(name: str) -> str:
    """Check and return a node name: as in DNS."""
    return _check(_NODE, name, "node name", "1 to 63 of a-z 0-9 -, as in DNS")


def check_secret(name: str) -> str:
    """Check and return a secret name: as of environment variables."""
    return _check(
        _SECRET,
        name,
        "secret's name",
        "1 to 128 of letters, digits and _, not beginning with a digit",
    )


def check_request_id(request_id: str) -> str:
    """Check and return a request id."""
    return _check(_REQUEST, request_id, "request id", "1 to 64 of letters, digits, '_', '-', '.'")


def check_digest(digest: str) -> str:
    """Check and return a digest: 64 lowercase hexadecimal digits."""
    return _check(_DIGEST, digest, "digest", "64 lowercase hexadecimal digits")


def is_digest(text: str) -> bool:
    """Return whether it is 64 lowercase hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def fits_glob(name: str, glob: str) -> bool:
    """Return whether a whole name matches a glob, case-sensitively.

    `*` is any text, `?` any one character, both including `/`; `[ab]`, `[a-c]` and `[!ab]` are one
    character in a set or outside of it. An unclosed `[` is literal.
    """
    return _of_glob(glob).match(name) is not None


@lru_cache(maxsize=64)
def _of_glob(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))


def _check(grammar: re.Pattern[str], text: str, what: str, rule: str) -> str:
    if not grammar.fullmatch(text):
        raise InvalidRequest(f"{text[:80]!r} is not a {what}", why=rule)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReference:
    """A parsed reference: exactly one field is set, or `dataset` with `number`.

    `recent` counts from 1, the caller's last session.
    """

    id: str = ""
    name: str = ""
    dataset: str = ""
    number: int = 0
    recent: int = 0


def parse_reference(text: str) -> SessionReference:
    """Parse an id, USER/DATASET/N, DATASET/N, N, @last or @K; InvalidRequest otherwise."""
    if _ID.fullmatch(text):
        return SessionReference(id=text)
    if text == "@last":
        return SessionReference(recent=1)
    if re.fullmatch(r"@[1-9][0-9]{0,5}", text):
        return SessionReference(recent=_recent(text))
    parts = text.split("/") if len(text) <= LONGEST_REFERENCE else [""]
    if _NUMBER.fullmatch(parts[-1]) and all(parts):
        number = int(parts[-1])
        if len(parts) == 3:
            return SessionReference(name=text)
        if len(parts) == 2:
            return SessionReference(dataset=parts[0], number=number)
        if len(parts) == 1:
            return SessionReference(number=number)
    raise InvalidRequest(
        f"{text[:80]!r} does not name a session",
        attempt="@last"
        if text.lstrip("@") in {"last", "latest", "newest"}
        else "USER/DATASET/N, DATASET/N, N, an id, @last or @2",
    )


def _recent(text: str) -> int:
    count = int(text[1:])
    if count > FURTHEST_BACK:
        raise InvalidRequest(
            f"{text} counts too far back",
            why=f"@{FURTHEST_BACK} is the last that is counted to",
            attempt="the name of the session: nsml ps -a",
        )
    return count
