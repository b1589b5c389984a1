"""A server that speaks the XML interface of Google Cloud Storage, for tests: moto's, translated.

No server on the registries keeps that interface. It is the one of S3 but for the header that makes a write conditional, deletes of what is
not there, and how requests are signed: these are done here, and signatures are verified as Google describes them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from calendar import timegm
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.relays import Answer, Asked, ask, relay
from tests.support.s3 import S3Server

ACCOUNT: Final = "nsml@tests.iam.gserviceaccount.com"
_KEY_OF_S3: Final = "AWS4-HMAC-SHA256 Credential=a/20261128/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=a"
"""Which moto does not verify."""
_HOST: Final = "storage.googleapis.com"
"""For which obstore signs URLs, whatever the endpoint is."""
_NEW: Final = "x-goog-if-generation-match"


def service_account(key: rsa.RSAPrivateKey) -> str:
    """A key file as `gcloud iam service-accounts keys create` writes it."""
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "tests",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": ACCOUNT,
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


@dataclass(frozen=True)
class GcsServer:
    """A server with one service account, which may do all.

    Attributes:
        credentials: its key file.
    """

    endpoint: str
    credentials: Path
    _behind: S3Server

    def bucket(self) -> str:
        """The name of a new bucket."""
        return self._behind.bucket()

    def keys(self, bucket: str) -> list[str]:
        """The names of all objects in a bucket."""
        return self._behind.keys(bucket)

    def empty(self, bucket: str) -> None:
        """Remove all objects of a bucket."""
        self._behind.empty(bucket)

    @property
    def environment(self) -> Mapping[str, str]:
        """Where its credentials are found."""
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(self.credentials)}


@contextmanager
def serving(behind: S3Server, folder: Path) -> Iterator[GcsServer]:
    """A server, for the length of a `with`; the key file is written into the folder."""
    key = rsa.generate_private_key(65537, 2048)
    credentials = folder / "service-account.json"
    credentials.touch(0o600)
    credentials.write_text(service_account(key))
    public = key.public_key()
    with relay(lambda asked: _answer(behind.endpoint, public, asked)) as endpoint:
        yield GcsServer(endpoint, credentials, behind)


@pytest.fixture(scope="session")
def gcs(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One server for the whole run: take a bucket of your own."""
    with serving(s3, tmp_path_factory.mktemp("gcs")) as server:
        yield server


def _answer(behind: str, public: rsa.RSAPublicKey, asked: Asked) -> Answer:
    path, _, query = asked.target.partition("?")
    denied = _denied(public, asked, path, query)
    if denied:
        return Answer(status=401, body=f"<Error><Code>{denied}</Code></Error>".encode())
    target = unquote(path).replace(" ", "%20") + (
        f"?{query}" if query and "X-Goog" not in query else ""
    )
    kept = {"content-type", "content-length", "range", "if-match", "if-none-match"}
    headers = {name: value for name, value in asked.headers.items() if name in kept}
    headers["authorization"] = _KEY_OF_S3
    if asked.headers.get(_NEW) == "0":
        headers["if-none-match"] = "*"
    if asked.method == "DELETE" and not query:
        # S3 takes the deletion of nothing for done.
        there = ask(behind, Asked(method="HEAD", target=target, headers=headers))
        if there.status == 404:
            return Answer(status=404, body=b"<Error><Code>NoSuchKey</Code></Error>")
    return ask(behind, Asked(method=asked.method, target=target, headers=headers, body=asked.body))


def _denied(public: rsa.RSAPublicKey, asked: Asked, path: str, query: str) -> str:
    """Why a request is not let in; "": it is."""
    try:
        if "X-Goog-Signature" in query:
            return _verify_url(public, asked, path, query)
        return _verify_token(public, asked.headers.get("authorization", ""))
    except (ValueError, KeyError, InvalidSignature):
        return "AuthenticationRequired"


def _verify_token(public: rsa.RSAPublicKey, authorization: str) -> str:
    signed, _, signature = authorization.removeprefix("Bearer ").rpartition(".")
    public.verify(_decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    claims = json.loads(_decoded(signed.partition(".")[2]))
    is_ours = claims["iss"] == ACCOUNT and claims["iat"] - 60 <= time.time() < claims["exp"]
    return "" if is_ours else "ExpiredToken"


def _verify_url(public: rsa.RSAPublicKey, asked: Asked, path: str, query: str) -> str:
    found = dict(parse_qsl(query))
    signature = bytes.fromhex(found.pop("X-Goog-Signature"))
    ordered = "&".join(
        f"{quote(name, safe='')}={quote(found[name], safe='')}" for name in sorted(found)
    )
    request = f"{asked.method}\n{path}\n{ordered}\nhost:{_HOST}\n\nhost\nUNSIGNED-PAYLOAD"
    scope = found["X-Goog-Credential"].partition("/")[2]
    digest = hashlib.sha256(request.encode()).hexdigest()
    signed = f"GOOG4-RSA-SHA256\n{found['X-Goog-Date']}\n{scope}\n{digest}"
    public.verify(signature, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    begun = timegm(time.strptime(found["X-Goog-Date"], "%Y%m%dT%H%M%SZ"))
    return "" if time.time() < begun + int(found["X-Goog-Expires"]) else "ExpiredToken"


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
