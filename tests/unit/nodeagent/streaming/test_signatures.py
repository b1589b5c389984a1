"""Requests as botocore signs them, and what is wrong with others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from nodeagent.streaming.errors import S3Error
from nodeagent.streaming.signatures import MOST_SKEW_S, Keys, SignedRequest, check_signature

KEYS = Keys(access_key_id="NSMLA", secret="s3cret")
URLS = [
    "http://127.0.0.1:9/",
    "http://127.0.0.1:9/big/a%20b%2B%C3%BC~.txt",
    "http://127.0.0.1:9/big?list-type=2&prefix=a%2Fb%20c&delimiter=%2F&continuation-token=eA%3D%3D&empty=",
]


def signed(url: str, signer: Any = S3SigV4Auth, **more: Any) -> SignedRequest:
    credentials = Credentials(KEYS.access_key_id, KEYS.secret)
    request = AWSRequest("GET", url, headers={} if more else {"Range": "bytes=0-1"})
    signer(credentials, "s3", "us-east-1", **more).add_auth(request)
    parts = urlsplit(request.url)
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers["host"] = parts.netloc
    return SignedRequest(
        method="GET", path=parts.path, query=parts.query, headers=sorted(headers.items())
    )


def now() -> float:
    return datetime.now(UTC).timestamp()


def refused(request: SignedRequest, keys: Keys = KEYS, at: float | None = None) -> str:
    with pytest.raises(S3Error) as error:
        check_signature(request, keys, now() if at is None else at)
    return error.value.code


@pytest.mark.parametrize("url", URLS)
def test_what_a_client_signs_is_served_for_a_while(url: str) -> None:
    request = signed(url)
    check_signature(request, KEYS, now())
    check_signature(request, KEYS, now() + MOST_SKEW_S - 60)
    assert refused(request, at=now() + MOST_SKEW_S + 60) == "RequestTimeTooSkewed"
    assert refused(request, at=now() - MOST_SKEW_S - 60) == "RequestTimeTooSkewed"


def test_a_presigned_url_is_served_until_it_expires() -> None:
    request = signed(URLS[1], S3SigV4QueryAuth, expires=3600)
    request = replace(request, headers=[("host", "127.0.0.1:9"), ("range", "bytes=5-6")])
    check_signature(request, KEYS, now() + 3000)
    assert refused(request, at=now() + 4000) == "RequestTimeTooSkewed"
    assert refused(replace(request, query=request.query.replace("3600", "9000"))) == (
        "SignatureDoesNotMatch"
    )


def test_what_another_session_signs_is_refused() -> None:
    request = signed(URLS[1])
    other = Keys(access_key_id="NSMLB", secret="another")
    assert refused(request, other) == "InvalidAccessKeyId"
    assert refused(request, replace(KEYS, secret="another")) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"path": "/big/other.txt"}, "SignatureDoesNotMatch"),
        ({"query": "list-type=2"}, "SignatureDoesNotMatch"),
        ({"method": "HEAD"}, "SignatureDoesNotMatch"),
    ],
)
def test_nothing_of_a_signed_request_can_be_another(change: dict[str, str], code: str) -> None:
    assert refused(replace(signed(URLS[1]), **change)) == code  # type: ignore[arg-type]


def with_header(request: SignedRequest, name: str, value: str | None) -> SignedRequest:
    kept = [one for one in request.headers if one[0] != name]
    return replace(request, headers=[*kept, *([] if value is None else [(name, value)])])


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("authorization", None, "AccessDenied"),
        ("authorization", "AWS NSMLA:c2ln", "InvalidRequest"),
        ("authorization", "AWS4-HMAC-SHA256 " + "Credential=a," * 1000, "InvalidRequest"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=NSMLA/x/s3, SignedHeaders=host, Signature=\xff",
            "InvalidArgument",
        ),
        ("host", "127.0.0.1:10", "SignatureDoesNotMatch"),
        ("x-amz-date", "yesterday", "InvalidRequest"),
        ("x-amz-date", None, "InvalidRequest"),
        ("x-amz-security-token", "more", "AccessDenied"),
        ("x-amz-content-sha256", "0" * 64, "XAmzContentSHA256Mismatch"),
    ],
)
def test_headers_that_are_not_as_they_were_signed(name: str, value: str | None, code: str) -> None:
    assert refused(with_header(signed(URLS[1]), name, value)) == code
