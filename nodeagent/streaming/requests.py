"""Answers requests of S3 clients: buckets are the session's datasets, objects their files.

GetObject with one range, HeadObject, ListObjectsV2 and ListObjects with prefix and delimiter, HeadBucket, ListBuckets,
GetBucketLocation and GetBucketVersioning, path-style. All else is refused: the endpoint is read-only. Blocking, by
the look-ups in an index.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes
from xml.sax.saxutils import escape

from nodeagent.streaming.errors import S3Error, invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.streaming.index import File, Index
    from nodeagent.streaming.signatures import SignedRequest

REGION: Final = "us-east-1"
_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_LISTED: Final = "2000-01-01T00:00:00.000Z"
_MODIFIED: Final = "Sat, 01 Jan 2000 00:00:00 GMT"
"""Of each file: a version never changes, and should look the same on every node."""
_MOST_KEYS: Final = 1000
_LOOKED_AT_ONCE: Final = 100
_NUMBER: Final = re.compile("[0-9]{1,6}")
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_UNSERVED_OF_BUCKETS: Final = frozenset(
    [
        "accelerate",
        "acl",
        "analytics",
        "cors",
        "encryption",
        "intelligent-tiering",
        "inventory",
        "lifecycle",
        "logging",
        "metrics",
        "notification",
        "object-lock",
        "ownershipControls",
        "policy",
        "policyStatus",
        "publicAccessBlock",
        "replication",
        "requestPayment",
        "tagging",
        "uploads",
        "versions",
        "website",
    ]
)
_UNSERVED_OF_OBJECTS: Final = frozenset(
    ["acl", "attributes", "legal-hold", "retention", "select", "tagging", "torrent", "uploadId"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A dataset version: `root` is the digest of its manifest."""

    root: str
    index: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """The bytes `start` to `end` (exclusive) of a file, to be streamed."""

    bucket: Bucket
    file: File
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A response with a body, or a part of a file; for HEAD neither is sent."""

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    part: ByteRange | None = None


def check_method(method: str) -> None:
    """Raise S3Error for methods that would change something."""
    if method not in {"GET", "HEAD"}:
        raise S3Error(
            405, "MethodNotAllowed", "datasets are read-only: nsml dataset push makes a version"
        )


def answer(request: SignedRequest, buckets: Mapping[str, Bucket]) -> Reply:
    """Answer a request with a verified signature. Raises S3Error, and OSError from an index."""
    given = dict(request.parameters)
    name, _, key = request.path.removeprefix("/").partition("/")
    if not name:
        return _xml(_bucket_list(buckets))
    bucket = buckets.get(unquote_to_bytes(name).decode("utf-8", "replace"))
    if bucket is None:
        raise S3Error(404, "NoSuchBucket", "the session does not stream a dataset of this name")
    if key:
        if given.keys() & _UNSERVED_OF_OBJECTS:
            raise _not_served()
        return _object(request, bucket, unquote_to_bytes(key))
    if given.keys() & _UNSERVED_OF_BUCKETS:
        raise _not_served()
    if request.method == "HEAD":
        return Reply(headers=[("x-amz-bucket-region", REGION)])
    if "location" in given:
        return _xml(f'<LocationConstraint xmlns="{_NAMESPACE}"/>')
    if "versioning" in given:
        return _xml(f'<VersioningConfiguration xmlns="{_NAMESPACE}"/>')
    return _xml(_listing(bucket, unquote_to_bytes(name).decode(), given))


def error_reply(error: S3Error) -> Reply:
    """Return an error in S3's format."""
    text = (
        f"<Error><Code>{escape(error.code)}</Code><Message>{escape(str(error))}</Message></Error>"
    )
    return _xml(text, status=error.status)


def _not_served() -> S3Error:
    return S3Error(501, "NotImplemented", "this is not served for datasets")


def _xml(text: str, *, status: int = 200) -> Reply:
    return Reply(
        status=status,
        headers=[("content-type", "application/xml")],
        body=(_HEAD + text).encode("utf-8", "replace"),
    )


def _bucket_list(buckets: Iterable[str]) -> str:
    names = "".join(
        f"<Bucket><Name>{escape(one)}</Name><CreationDate>{_LISTED}</CreationDate></Bucket>"
        for one in sorted(buckets)
    )
    return (
        f'<ListAllMyBucketsResult xmlns="{_NAMESPACE}"><Owner><ID>nsml</ID></Owner>'
        f"<Buckets>{names}</Buckets></ListAllMyBucketsResult>"
    )


def _object(request: SignedRequest, bucket: Bucket, path: bytes) -> Reply:
    file = bucket.index.find(path)
    if file is None:
        raise S3Error(404, "NoSuchKey", "the dataset has no such file")
    tag = f'"{file.etag}"'
    headers = [
        ("etag", tag),
        ("last-modified", _MODIFIED),
        ("accept-ranges", "bytes"),
        ("content-type", "binary/octet-stream"),
    ]
    if (wanted := request.header("if-match")) is not None and not _names(wanted, file.etag):
        raise S3Error(412, "PreconditionFailed", "the file has another ETag")
    if (known := request.header("if-none-match")) is not None and _names(known, file.etag):
        return Reply(status=304, headers=headers)
    start, end = 0, file.size
    status = 200
    if (text := request.header("range")) is not None:
        status = 206
        start, end = range_of(text, file.size)
        headers.append(("content-range", f"bytes {start}-{end - 1}/{file.size}"))
    headers.append(("content-length", str(end - start)))
    part = ByteRange(bucket=bucket, file=file, start=start, end=end)
    return Reply(status=status, headers=headers, part=part)


def _names(header: str, etag: str) -> bool:
    tags = {one.strip().removeprefix("W/").strip('"') for one in header.split(",")}
    return bool({"*", etag} & tags)


def range_of(text: str, size: int) -> tuple[int, int]:
    """Return the bytes of a Range header, the second exclusive. Raises S3Error, also for several ranges."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise invalid("a request has one range: bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT")
    first, last = found.groups()
    if first:
        start, end = int(first), min(int(last) + 1, size) if last else size
    else:
        start, end = max(size - int(last), 0), size
    if start >= end:
        raise S3Error(416, "InvalidRange", f"the file has {size} bytes")
    return start, end


def _listing(bucket: Bucket, name: str, given: Mapping[str, str]) -> str:
    is_second = given.get("list-type") == "2"
    prefix, delimiter = given.get("prefix", ""), given.get("delimiter", "")
    most_text = given.get("max-keys", str(_MOST_KEYS))
    if not _NUMBER.fullmatch(most_text):
        raise invalid("max-keys is a number")
    most = min(int(most_text), _MOST_KEYS)
    token = given.get("continuation-token", "") if is_second else ""
    after = (
        _of_token(token)
        if token
        else _bytes(given.get("start-after" if is_second else "marker", ""))
    )
    files, prefixes, last = page_of(
        bucket.index, _bytes(prefix), _bytes(delimiter), after, most=most
    )
    is_encoded = given.get("encoding-type") == "url"

    def key(value: bytes) -> str:
        text = quote(value, safe="/-_.~") if is_encoded else value.decode("utf-8", "replace")
        return escape(text)

    entries = "".join(
        f"<Contents><Key>{key(one.path)}</Key><LastModified>{_LISTED}</LastModified>"
        f"<ETag>&quot;{one.etag}&quot;</ETag><Size>{one.size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for one in files
    )
    entries += "".join(
        f"<CommonPrefixes><Prefix>{key(one)}</Prefix></CommonPrefixes>" for one in prefixes
    )
    facts = [("Name", escape(name)), ("Prefix", key(_bytes(prefix))), ("MaxKeys", str(most))]
    if delimiter:
        facts.append(("Delimiter", key(_bytes(delimiter))))
    if is_encoded:
        facts.append(("EncodingType", "url"))
    if is_second:
        facts.append(("KeyCount", str(len(files) + len(prefixes))))
        if token:
            facts.append(("ContinuationToken", escape(token)))
        if last:
            facts.append(("NextContinuationToken", base64.urlsafe_b64encode(last).decode()))
    else:
        facts.append(("Marker", key(after)))
        if last:
            facts.append(("NextMarker", key(last)))
    facts.append(("IsTruncated", "true" if last else "false"))
    head = "".join(f"<{one}>{value}</{one}>" for one, value in facts)
    return f'<ListBucketResult xmlns="{_NAMESPACE}">{head}{entries}</ListBucketResult>'


def page_of(
    index: Index, prefix: bytes, delimiter: bytes, after: bytes, *, most: int
) -> tuple[list[File], list[bytes], bytes]:
    """Return at most `most` files and common prefixes after `after`, and the last one if more follow (else empty)."""
    files: list[File] = []
    prefixes: list[bytes] = []
    last = b""
    first, end = max(prefix, after + b"\0" if after else b""), _behind(prefix)
    while most:
        at_once = min(most, _LOOKED_AT_ONCE) if delimiter else most
        # one more than wanted shows whether there are more
        found = index.files_from(first, end, at_once + 1)
        for file in found:
            common = _common(file.path, prefix, delimiter)
            is_passed = bool(common) and common <= after
            if not is_passed and len(files) + len(prefixes) == most:
                return files, prefixes, last
            if not common:
                files.append(file)
                last, first = file.path, file.path + b"\0"
                continue
            if not is_passed:
                prefixes.append(common)
                last = common
            behind = _behind(common)
            if behind is None:
                return files, prefixes, b""
            first = behind
            break
        else:
            if len(found) <= at_once:
                break
    return files, prefixes, b""


def _common(path: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Return the common prefix that lists a path, up to the first delimiter after `prefix`; empty: the path itself is listed."""
    at = path.find(delimiter, len(prefix)) if delimiter else -1
    return path[: at + len(delimiter)] if at >= 0 else b""


def _behind(prefix: bytes) -> bytes | None:
    """Return the first possible path after all with the prefix; None if there is none."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _of_token(token: str) -> bytes:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("the continuation token is not one of this endpoint's") from error
