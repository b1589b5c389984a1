"""References of container images: what users, administrators and `#nsml:` lines call them.

Both ends read such lines here, by one rule.

The grammar is that of the registries: `[HOST[:PORT]/]NAME[/NAME...][:TAG][@DIGEST]`. Nothing that
does not match it is ever handed to an engine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

IMAGE_FILES: Final = ("setup.py", "requirements.txt")
"""The files of a code folder whose `#nsml:` lines count; the first that has one decides."""

LONGEST: Final = 512
"""Characters of a whole reference; its name alone has at most 255."""

OWN_IMAGE: Final = "nsml-base:latest"
"""The image of sessions that name none, where nobody says otherwise; `deploy/image` makes it."""

RULE: Final = "it is [HOST[:PORT]/]NAME[:TAG][@sha256:...], in small letters up to the tag"
"""What a reference looks like, for messages."""

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_PORT = "(?::[0-9]{1,5})"
# without a dot or a port it is the first part of a name, to engines, but for localhost
_HOST = rf"(?:localhost{_PORT}?|{_LABEL}(?:\.{_LABEL})+{_PORT}?|{_LABEL}{_PORT})"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha(?:256:[0-9a-f]{64}|512:[0-9a-f]{128})))?"
)
_ID = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 255
_LINE = re.compile(r"#\s*nsml:(.*)")


class NamesNoImage(ValueError):
    """A `#nsml:` line that names no image; the message has file, number and line."""


def is_reference(text: str) -> bool:
    """Whether `text` names an image."""
    found = _REFERENCE.fullmatch(text) if len(text) <= LONGEST else None
    if found is None or len(found["name"]) > _LONGEST_NAME:
        return False
    # to an engine these are ids, of whosever image it is
    return found["name"] != "sha256" and _ID.fullmatch(text) is None


def asked_image(texts: Iterable[tuple[str, str]]) -> str | None:
    """The image that files, by name and text in their order, ask for; None where none does.

    NSML read `#nsml: IMAGE`, or `# nsml:IMAGE`, in the first line. Here it may stand below others
    that are empty or comments, such as `#!/usr/bin/env python3`, but never below code, where a string
    could hold it. A further comment may follow the name, and nothing else.

    Raises:
        NamesNoImage: the first such line of a file names none.
    """
    for file, text in texts:
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
            line = line.strip()  # noqa: PLW2901
            if line and not line.startswith("#"):
                break
            found = _LINE.fullmatch(line)
            if found is None:
                continue
            image = re.split(r"(?:^|\s)#", found[1], maxsplit=1)[0].strip()
            if not is_reference(image):
                raise NamesNoImage(f"{file}, line {number}: {line[:120]!r} names no image")
            return image
    return None


def is_made_here(reference: str) -> bool:
    """Whether an image of this name is made on its node, and is asked of no registry.

    On a public registry anybody may hold the name.
    """
    return parts_of(reference)[0] == parts_of(OWN_IMAGE)[0]


def whole_reference(reference: str) -> str:
    """`reference` with the tag `latest` that it means when it has neither tag nor digest.

    Raises:
        ValueError: it names no image.
    """
    name, tag, digest = parts_of(reference)
    return reference if tag or digest else f"{name}:latest"


def parts_of(reference: str) -> tuple[str, str, str]:
    """Name, tag and digest of a reference; what it does not have is "".

    Raises:
        ValueError: it names no image.
    """
    found = _REFERENCE.fullmatch(reference) if is_reference(reference) else None
    if found is None:
        raise ValueError(f"{reference[:80]!r} is not the name of an image")
    return found["name"], found["tag"] or "", found["digest"] or ""
