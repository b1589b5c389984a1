"""What obstore says of services that are away, and of services that deny us: as version 0.12 words it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controlplane.objects.azure import AZURE
from controlplane.objects.denials import denial, reason
from controlplane.objects.gcs import GCS
from controlplane.objects.s3 import S3

if TYPE_CHECKING:
    from controlplane.objects.service import Advice

_BEGUN = (
    "Generic S3 error: Error performing GET http://127.0.0.1:9000/b/nsml/mark?list-type=2 in 357.244906ms, "
    "after 3 retries, max_retries: 3, retry_timeout: 8s  - "
)
_UNSENT = _BEGUN + "HTTP error: error sending request"


def unsent(cause: str) -> str:
    """A request that got no answer: the cause stands in the source alone."""
    return (
        f'{_UNSENT}\n\nDebug source:\nGeneric {{\n    store: "S3",\n    source: RetryError(\n'
        f"        inner: Http(\n            HttpError {{\n                {cause}\n"
    )


def answered(status: str, body: str = "") -> str:
    begun = _BEGUN.replace(", after 3 retries, max_retries: 3, retry_timeout: 8s ", "")
    return (
        f"{begun}Server returned non-2xx status code: {status}: {body}\n\nDebug source:\nGeneric {{"
    )


def xml(code: str) -> str:
    return f'<?xml version="1.0" encoding="utf-8"?>\n<Error><Code>{code}</Code></Error>'


def test_without_a_key_it_is_said_that_there_is_none() -> None:
    words = unsent(
        'ConnectError("tcp connect error", Os { code: 101, message: "Network is unreachable" })'
    ).replace("http://127.0.0.1:9000", "http://169.254.169.254")
    assert not denial(words, S3.advice), "of a machine of Amazon's it may come yet"
    assert reason(words) == (
        "no key for it: none in the environment or a credentials file, "
        "none from http://169.254.169.254: Network is unreachable"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            unsent(
                'ConnectError("tcp connect error", Os { code: 111, message: "Connection refused" })'
            ),
            "Connection refused",
        ),
        (
            unsent(
                'ConnectError("dns error", Custom { error: "failed to lookup address information: Name '
                'or service not known" })'
            ),
            "failed to lookup address information: Name or service not known",
        ),
        (
            unsent("kind: Timeout, source: reqwest::Error { source: TimedOut }"),
            "it says nothing in time",
        ),
        (unsent("hyper::Error(\n    IncompleteMessage,\n)"), "it hangs up"),
        (unsent("something new"), "HTTP error: error sending request"),
        (
            answered("500 Internal Server Error", xml("InternalError")),
            "Server returned non-2xx status code: 500 Internal Server Error (InternalError)",
        ),
        (
            answered("503 Service Unavailable", xml("SlowDown")),
            "Server returned non-2xx status code: 503 Service Unavailable (SlowDown)",
        ),
        (answered("502 Bad Gateway"), "Server returned non-2xx status code: 502 Bad Gateway"),
    ],
)
def test_away(words: str, told: str) -> None:
    assert not denial(words, S3.advice)
    assert reason(words) == f"http://127.0.0.1:9000: {told}"


@pytest.mark.parametrize(
    ("words", "told", "advice"),
    [
        (
            unsent("error: InvalidCertificate(\n    UnknownIssuer,\n)"),
            "its certificate does not verify: UnknownIssuer",
            "s3_ca",
        ),
        (
            unsent(
                "error: InvalidCertificate(\n    Other(\n   OtherError(\n CaUsedAsEndEntity,\n)))"
            ),
            "its certificate does not verify: CaUsedAsEndEntity",
            "s3_ca",
        ),
        (
            unsent("error: InvalidMessage(\n    InvalidContentType,\n)"),
            "it does not speak TLS",
            "s3_endpoint",
        ),
        (answered("403 Forbidden", xml("AccessDenied")), "403 Forbidden", "AWS_ACCESS_KEY_ID"),
        (
            answered("403 Forbidden", xml("InvalidAccessKeyId")),
            "403 Forbidden",
            "AWS_ACCESS_KEY_ID",
        ),
        (answered("401 Unauthorized"), "401 Unauthorized", "AWS_ACCESS_KEY_ID"),
        (answered("400 Bad Request", xml("ExpiredToken")), "400 Bad Request", "AWS_ACCESS_KEY_ID"),
        (answered("404 Not Found", xml("NoSuchBucket")), "404 Not Found", "make the bucket"),
        (
            _BEGUN + "Received redirect without LOCATION, this normally indicates an incorrectly "
            "configured region\n\nDebug source:\n",
            "incorrectly configured region",
            "s3_region",
        ),
    ],
)
def test_denied(words: str, told: str, advice: str) -> None:
    assert advice in denial(words, S3.advice)
    assert reason(words).startswith("http://127.0.0.1:9000: ")
    assert told in reason(words)


@pytest.mark.parametrize("words", ["Permission denied (os error 13)", "first\nsecond", ""])
def test_what_is_not_of_a_service_is_told_by_its_first_line(words: str) -> None:
    assert reason(words) == words.partition("\n")[0]
    assert not denial(words, S3.advice)


_TOKEN = (
    "Generic GCS error: Error performing token request: Error performing POST "
    "https://oauth2.googleapis.com/token in 3ms - Server returned non-2xx status code: 400 Bad Request: "
    '{\n  "error": "invalid_grant"\n}\n\nDebug source:\n'
)
_OF_AZURE = (
    "Object at location p/mark not found: Error performing GET https://a.blob.core.windows.net/c/p/mark in 3ms"
    " - Server returned non-2xx status code: {}: \N{ZERO WIDTH NO-BREAK SPACE}<?xml version='1.0'?><Error>"
    "<Code>{}</Code><Message>RequestId:5805a652</Message></Error>\n\nDebug source:\n"
)


@pytest.mark.parametrize(
    ("words", "advice", "told", "tried"),
    [
        (
            _TOKEN,
            GCS.advice,
            "https://oauth2.googleapis.com: Server returned non-2xx status code: 400 Bad Request",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            _OF_AZURE.format("404 Gone", "ContainerNotFound"),
            AZURE.advice,
            "https://a.blob.core.windows.net: Server returned non-2xx status code: 404 Gone (ContainerNotFound)",
            "make the container",
        ),
        (
            _OF_AZURE.format("403 Forbidden", "AuthorizationPermissionMismatch"),
            AZURE.advice,
            "https://a.blob.core.windows.net: Server returned non-2xx status code: 403 Forbidden (AuthorizationP",
            "Storage Blob Data Contributor",
        ),
        (_OF_AZURE.format("404 Not Found", "BlobNotFound"), AZURE.advice, "https://a.blob", ""),
        (_OF_AZURE.format("503 Busy", "ServerBusy"), AZURE.advice, "https://a.blob", ""),
    ],
)
def test_each_cloud_has_advice_of_its_own(
    words: str, advice: Advice, told: str, tried: str
) -> None:
    assert reason(words).startswith(told)
    assert "RequestId" not in reason(words)
    found = denial(words, advice)
    assert tried in found if tried else not found


def test_a_machine_of_google_that_gives_no_key_is_named() -> None:
    words = unsent("kind: Timeout, source").replace(
        "http://127.0.0.1:9000", "http://metadata.google.internal"
    )
    assert reason(words).startswith("no key for it: none in the environment")
