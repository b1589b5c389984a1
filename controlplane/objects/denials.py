"""Whether an object store that cannot be used is away, or denies us: by what obstore says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controlplane.objects.service import Advice

NO_BUCKET: Final = re.compile(r"\b(NoSuchBucket|ContainerNotFound)\b")
"""Not that an object is not in it."""
NOT_UNDERSTOOD: Final = re.compile(
    r"status code: (400|405|411|501)\b|Unable to extract metadata from headers"
)
"""The service does not know what is asked of it, or its answer is no such service's."""

_FILE: Final = re.compile(r"\bcredential provider: ValueError: (.*)")
"""What we say of a credentials file, as obstore passes it on."""

_ADVICE: Final = (
    (NO_BUCKET, "bucket"),
    (re.compile(r"status code: 40[13]\b"), "key"),
    (re.compile(r"<Code>(ExpiredToken|InvalidToken)</Code>"), "key"),
    (re.compile(r"\btoken request: .* status code: 400\b"), "key"),
    (_FILE, "key"),
    (re.compile(r"\bInvalidCertificate\(|\bInvalidContentType\b"), "tls"),
    (
        re.compile(r"<Code>AuthorizationHeaderMalformed</Code>|incorrectly configured region"),
        "region",
    ),
)
"""What a service says, and the field of its advice that helps."""

_PLACE: Final = re.compile(r"\b[A-Z]+ (https?://[^/\s?]+)\S* in \S+?(?:,.*?)? +- (.*)")
_CAUSES: Final = (
    (
        re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)"),
        r"its certificate does not verify: \1",
    ),
    (re.compile(r"\bInvalidContentType\b"), "it does not speak TLS"),
    (re.compile(r"(?:message|error): \"([^\"]+)\""), r"\1"),
    (re.compile(r"kind: Timeout\b"), "it says nothing in time"),
    (re.compile(r"\bIncompleteMessage\b"), "it hangs up"),
)
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_UNSENT: Final = "HTTP error: "
_METADATA: Final = (
    "http://169.254.169.254",
    "http://169.254.170.2",
    "http://metadata.google.internal",
)
"""Whom obstore asks for a key when it has none: services of a cloud's machines and containers."""
_BODY: Final = re.compile(r": ?\N{ZERO WIDTH NO-BREAK SPACE}?(<\?xml|\{).*")


def denial(words: str, advice: Advice | None) -> str:
    """What to try where a service is there and denies us; "" while it is away, or in trouble itself, and for a folder."""
    if advice is None:
        return ""
    found = (getattr(advice, name) for pattern, name in _ADVICE if pattern.search(words))
    return next(found, "")


def reason(words: str) -> str:
    """What happened, and where: without the source that obstore adds for its developers.

    The same failure reads the same each time. Of a URL only the host is told: the rest of it may be
    what a service of the cloud gives keys for.
    """
    line, _, source = words.partition("\n\nDebug source:")
    line = _BODY.sub("", line.partition("\n")[0]).rstrip(" :")
    if file := _FILE.search(line):
        return file[1]
    place = _PLACE.search(line)
    if place is None:
        return line
    told = _cause(source) if place[2].startswith(_UNSENT) else ""
    code = _CODE.search(words)
    found = f"{place[1]}: {told or place[2]}{f' ({code[1]})' if code else ''}"
    if place[1].startswith(_METADATA):
        return f"no key for it: none in the environment or a credentials file, none from {found}"
    return found


def _cause(source: str) -> str:
    found = ((pattern.search(source), words) for pattern, words in _CAUSES)
    return next((match.expand(words) for match, words in found if match), "")
