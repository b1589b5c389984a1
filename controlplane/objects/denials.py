"""Tells unavailable object stores from denied access, by obstore's error messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controlplane.objects.service import Advice

NO_BUCKET: Final = re.compile(r"\b(NoSuchBucket|ContainerNotFound)\b")
"""The bucket is missing, not an object in it."""
NOT_UNDERSTOOD: Final = re.compile(
    r"status code: (400|405|411|501)\b|Unable to extract metadata from headers"
)
"""The service does not support the request, or is no object service."""

_FILE: Final = re.compile(r"\bcredential provider: ValueError: (.*)")
"""Our own error about a credentials file, as passed on by obstore."""

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
"""Error patterns, each with the matching field of Advice."""

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
"""Metadata services of cloud machines and containers; obstore requests keys there if it has none."""
_BODY: Final = re.compile(r": ?\N{ZERO WIDTH NO-BREAK SPACE}?(<\?xml|\{).*")


def denial(words: str, advice: Advice | None) -> str:
    """Return the advice for a denied request; "" for folders and for services that are away or failing."""
    if advice is None:
        return ""
    found = (getattr(advice, name) for pattern, name in _ADVICE if pattern.search(words))
    return next(found, "")


def reason(words: str) -> str:
    """Return what failed and where, without obstore's debug source.

    The same failure always gives the same text. URLs are cut to the host: the rest may be what a
    metadata service gives keys for.
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
