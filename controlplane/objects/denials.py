"""Whether an object store that cannot be used is away, or denies us: by what obstore says."""

from __future__ import annotations

import re
from typing import Final

_KEY: Final = (
    "give a key that may read, write, list and delete there: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or a credentials file"
)
_BUCKET: Final = "make the bucket, or name another one"
_TLS: Final = "name the authority of its certificate (s3_ca), and a host that the certificate has (s3_endpoint)"
_REGION: Final = "name the region of the bucket (s3_region, AWS_REGION)"

_ADVICE: Final = (
    (re.compile(r"\bNoSuchBucket\b"), _BUCKET),
    (re.compile(r"status code: 40[13]\b"), _KEY),
    (re.compile(r"<Code>(ExpiredToken|InvalidToken)</Code>"), _KEY),
    (re.compile(r"\bInvalidCertificate\(|\bInvalidContentType\b"), _TLS),
    (
        re.compile(r"<Code>AuthorizationHeaderMalformed</Code>|incorrectly configured region"),
        _REGION,
    ),
)

_PLACE: Final = re.compile(r"\b[A-Z]+ (https?://[^/\s?]+)\S* in \S+?(?:,.*?)? +- (.*)")
_CAUSES: Final = (
    (re.compile(r"InvalidCertificate\(\s*(\w+)"), r"its certificate does not verify: \1"),
    (re.compile(r"\bInvalidContentType\b"), "it does not speak TLS"),
    (re.compile(r"(?:message|error): \"([^\"]+)\""), r"\1"),
    (re.compile(r"kind: Timeout\b"), "it says nothing in time"),
    (re.compile(r"\bIncompleteMessage\b"), "it hangs up"),
)
_UNSENT: Final = "HTTP error: "
_METADATA: Final = ("http://169.254.169.254", "http://169.254.170.2")
"""Whom obstore asks for a key when it has none: services of Amazon's machines and containers."""


def denial(words: str) -> str:
    """What to try where a service is there and denies us; "" while it is away, or in trouble itself."""
    return next((advice for pattern, advice in _ADVICE if pattern.search(words)), "")


def reason(words: str) -> str:
    """What happened, and where: without the source that obstore adds for its developers.

    The same failure reads the same each time. Of a URL only the host is told: the rest of it may be
    what a service of the cloud gives keys for.
    """
    line, _, source = words.partition("\n\nDebug source:")
    line = line.partition(": <?xml")[0].partition("\n")[0].rstrip(" :")
    place = _PLACE.search(line)
    if place is None:
        return line
    told = _cause(source) if place[2].startswith(_UNSENT) else ""
    found = f"{place[1]}: {told or place[2]}"
    if place[1].startswith(_METADATA):
        return f"no key for it: none in the environment or a credentials file, none from {found}"
    return found


def _cause(source: str) -> str:
    found = ((pattern.search(source), words) for pattern, words in _CAUSES)
    return next((match.expand(words) for match, words in found if match), "")
