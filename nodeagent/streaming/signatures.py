"""AWS Signature Version 4: checks that a request was signed recently, with the keys of a session.

Pure. As Amazon describes it in "Authenticating Requests (AWS Signature Version 4)" of the S3 API reference: in the header
`Authorization`, or in the query of a presigned URL. Signed bodies are not read, because no request that is served
has one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from nodeagent.streaming.errors import denied, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALGORITHM: Final = "AWS4-HMAC-SHA256"
MOST_SKEW_S: Final = 15 * 60.0
"""Largest difference between the times of a signature and of its check, as with S3."""
_MOST_EXPIRY_S: Final = 7 * 24 * 3600
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_NOTHING: Final = hashlib.sha256(b"").hexdigest()
_TIME: Final = "%Y%m%dT%H%M%SZ"
_FIELD: Final = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")
_SPACES: Final = re.compile(r"\s+")
_UNRESERVED: Final = "-_.~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The key pair of a session."""

    access_key_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """A request as received: `path` and `query` undecoded, names of `headers` in lower case."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Names and values of the query, decoded; bytes that are not UTF-8 become surrogates."""
        pairs = (one.partition("=") for one in self.query.split("&") if one)
        return [(_decoded(name), _decoded(value)) for name, _, value in pairs]

    def header(self, name: str) -> str | None:
        """Return all values of a header, joined by commas; None: it is missing."""
        values = [value for one, value in self.headers if one == name]
        return ",".join(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """The signature of a request, and its parameters; `lasts_s` counts from `at`."""

    credential: str
    signed_headers: str
    signature: str
    at: str
    lasts_s: float
    payload: str
    query: Sequence[tuple[str, str]]


def check_signature(request: SignedRequest, keys: Keys, now: float) -> None:
    """Raise S3Error unless the request is signed with these keys, at about `now` (Unix seconds)."""
    parameters = request.parameters
    given = dict(parameters)
    if "X-Amz-Algorithm" in given:
        claim = _presigned(given, parameters)
    else:
        claim = _in_header(request, parameters)
    access_key_id, *scope = claim.credential.split("/")
    if access_key_id != keys.access_key_id:
        raise denied("InvalidAccessKeyId", "the access key is not this session's")
    if len(scope) != 4 or scope[2:] != ["s3", "aws4_request"]:
        raise invalid("the scope of the credential is not DATE/REGION/s3/aws4_request")
    _check_time(claim, scope[0], now)
    names = claim.signed_headers.split(";")
    _check_signed(request, names)
    expected = _signature(request, claim, names, scope, keys.secret)
    if not hmac.compare_digest(expected.encode(), claim.signature.encode("utf-8", "replace")):
        raise denied("SignatureDoesNotMatch", "the signature does not match the request")


def _in_header(request: SignedRequest, parameters: Sequence[tuple[str, str]]) -> _Claim:
    header = request.header("authorization")
    if header is None and "AWSAccessKeyId" not in dict(parameters):
        raise denied("AccessDenied", "the request is not signed")
    algorithm, _, rest = (header or "").partition(" ")
    found = dict(_FIELD.findall(rest))
    if algorithm != ALGORITHM or len(found) != 3:
        raise invalid(f"only {ALGORITHM} is understood", "InvalidRequest")
    return _Claim(
        credential=found["Credential"],
        signed_headers=found["SignedHeaders"],
        signature=found["Signature"],
        at=request.header("x-amz-date") or "",
        lasts_s=MOST_SKEW_S,
        payload=request.header("x-amz-content-sha256") or "",
        query=parameters,
    )


def _presigned(given: Mapping[str, str], parameters: Sequence[tuple[str, str]]) -> _Claim:
    expires = given.get("X-Amz-Expires", "")
    if given["X-Amz-Algorithm"] != ALGORITHM or not re.fullmatch("[0-9]{1,6}", expires):
        raise invalid(
            f"a presigned URL needs {ALGORITHM} and a time", "AuthorizationQueryParametersError"
        )
    return _Claim(
        credential=given.get("X-Amz-Credential", ""),
        signed_headers=given.get("X-Amz-SignedHeaders", ""),
        signature=given.get("X-Amz-Signature", ""),
        at=given.get("X-Amz-Date", ""),
        lasts_s=min(float(expires), _MOST_EXPIRY_S),
        payload=_UNSIGNED,
        query=[one for one in parameters if one[0] != "X-Amz-Signature"],
    )


def _check_time(claim: _Claim, date: str, now: float) -> None:
    try:
        at = datetime.strptime(claim.at, _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise invalid(f"a time is written as {_TIME}", "InvalidRequest") from error
    if not claim.at.startswith(date) or len(date) != 8:
        raise invalid("the credential is of another day than the request")
    if not at - MOST_SKEW_S <= now <= at + claim.lasts_s:
        raise denied("RequestTimeTooSkewed", "the request was signed too long ago, or is of later")


def _check_signed(request: SignedRequest, names: Sequence[str]) -> None:
    """Raise S3Error unless everything that affects the answer is signed."""
    needed = {name for name, _ in request.headers if name.startswith("x-amz-")} | {"host"}
    if not needed <= set(names):
        raise denied("AccessDenied", "the host and each x-amz- header must be signed")


def _signature(
    request: SignedRequest, claim: _Claim, names: Sequence[str], scope: Sequence[str], secret: str
) -> str:
    if claim.payload not in {_UNSIGNED, _NOTHING}:
        raise invalid("requests with a body are not served", "XAmzContentSHA256Mismatch")
    query = sorted((_encoded(name), _encoded(value)) for name, value in claim.query)
    headers = [f"{name}:{_SPACES.sub(' ', request.header(name) or '').strip()}\n" for name in names]
    canonical = "\n".join(
        [
            request.method,
            quote(unquote_to_bytes(request.path), safe="/" + _UNRESERVED),
            "&".join(f"{name}={value}" for name, value in query),
            "".join(headers),
            claim.signed_headers,
            claim.payload,
        ]
    )
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    to_sign = "\n".join([ALGORITHM, claim.at, "/".join(scope), digest])
    key = b"AWS4" + secret.encode()
    for part in scope:
        key = hmac.digest(key, part.encode("utf-8", "replace"), "sha256")
    return hmac.digest(key, to_sign.encode("utf-8", "replace"), "sha256").hex()


def _decoded(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def _encoded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"), safe=_UNRESERVED)
