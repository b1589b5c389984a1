"""`nsml.open`: opens a file of a dataset, whether streamed or on the node.

Streamed datasets are read from the S3 endpoint of the session (docs/programs.md), a range at a time, over a connection
that is reopened when it breaks: the agent of the node may restart meanwhile.
"""

from __future__ import annotations

import builtins
import hashlib
import hmac
import http.client
import io
import os
import time
from urllib.parse import quote, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Dict, List, Optional, Tuple, Union

BUFFER_BYTES = 1 << 20
_TIMEOUT_S = 120.0
_WITHIN_S = 300.0
"""How long requests are retried, while the node's agent is unreachable."""
_PAUSES_S = (0.05, 5.0)
_REGION = "us-east-1"
_ALGORITHM = "AWS4-HMAC-SHA256"
_NOTHING = hashlib.sha256(b"").hexdigest()
_SCHEMES = ("s3://", "/data/")
_OK, _PARTIAL = (200, 206)
_GONE, _FORBIDDEN, _DAMAGED = 404, 403, 410
_SERVER_ERRORS = 500


def open(  # noqa: A001, PLR0917 - as the built-in one
    path: Union[str, os.PathLike[str]],
    mode: str = "r",
    buffering: int = -1,
    encoding: Optional[str] = None,
    errors: Optional[str] = None,
    newline: Optional[str] = None,
) -> IO[Any]:
    """Open a file of a dataset for reading, as the built-in `open` does.

    `path` is NAME/FILE, /data/NAME/FILE or s3://NAME/FILE; any other path is a local file. Of a streamed
    dataset only the parts read are fetched, `buffering` bytes at a time (default: 1 MiB).

    Raises:
        ValueError: the mode is not one of r, rb and rt.
        FileNotFoundError: the dataset has no such file.
    """
    if mode not in {"r", "rt", "tr", "rb", "br"}:
        raise ValueError(f"nsml.open reads only: mode {mode!r}")
    text = os.fspath(path)
    name, file = _split(text)
    if name not in _names("NSML_STREAMED"):
        local = _local(text, name, file)
        try:
            return builtins.open(local, mode, buffering, encoding, errors, newline)
        except FileNotFoundError as error:
            words = _there_are(text, name)
            if not words:
                raise
            raise FileNotFoundError(error.errno, f"{error.strerror} ({words})", local) from None
    size = BUFFER_BYTES if buffering < 0 else max(buffering, 1)
    reader = io.BufferedReader(StreamedFile(name, file), size)
    if "b" in mode:
        return reader
    return io.TextIOWrapper(reader, encoding, errors, newline)


def _names(variable: str) -> List[str]:
    return [name for name in os.environ.get(variable, "").split(os.pathsep) if name]


def _there_are(path: str, name: str) -> str:
    """Return the available datasets, for the error on a path that begins with none of them; else ""."""
    streamed, mounted = _names("NSML_STREAMED"), _names("NSML_DATASET_NAME")
    names = list(dict.fromkeys([*mounted, *streamed]))
    if not names or name in names or (path.startswith("/") and not path.startswith("/data/")):
        return ""
    file = path.rpartition("/")[2]
    shown = ", ".join(f"{one} (streamed)" if one in streamed else one for one in names)
    return f"a path begins with a dataset, such as {names[0]}/{file}; there are {shown}"


def _split(path: str) -> Tuple[str, str]:
    """Split a path into the name of a dataset, perhaps, and a file in it."""
    for scheme in _SCHEMES:
        path = path.removeprefix(scheme)
    name, _, file = path.partition("/")
    return name, file


def _local(path: str, name: str, file: str) -> str:
    """Return the local path of a file."""
    names = os.environ.get("NSML_DATASET_NAME", "").split(os.pathsep)
    folders = os.environ.get("NSML_DATASET_PATH", "").split(os.pathsep)
    known = dict(zip(names, folders))
    if name and known.get(name):
        return os.path.join(known[name], file)
    if path.startswith("s3://"):
        words = _there_are(path, name)
        raise FileNotFoundError(
            f"the session has no dataset {name}: {path}{f' ({words})' if words else ''}"
        )
    return path


class StreamedFile(io.RawIOBase):
    """A file of a streamed dataset: each read requests a range."""

    def __init__(self, dataset: str, file: str) -> None:
        super().__init__()
        self.name = f"s3://{dataset}/{file}"
        self._path = quote(f"/{dataset}/{file}", safe="/-_.~")
        self._endpoint = urlsplit(os.environ["NSML_S3_ENDPOINT_URL"])
        self._connection: Optional[http.client.HTTPConnection] = None
        self._process = 0
        self._at = 0
        status, headers, _ = self._request("HEAD", {})
        if status != _OK:
            raise self._error(status)
        self._size = int(headers["content-length"])

    def readable(self) -> bool:
        """See io.IOBase."""
        return True

    def seekable(self) -> bool:
        """See io.IOBase."""
        return True

    def tell(self) -> int:
        """See io.IOBase."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """See io.IOBase."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position: {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """See io.RawIOBase."""
        parts: List[bytes] = []
        while True:
            part = self._read(max(self._size - self._at, 0))
            if not part:
                return b"".join(parts)
            parts.append(part)

    def close(self) -> None:
        """See io.IOBase."""
        if self._connection is not None:
            self._connection.close()
        super().close()

    def _read(self, count: int) -> bytes:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        end = min(self._at + count, self._size)
        if self._at >= end:
            return b""
        status, _, data = self._request("GET", {"range": f"bytes={self._at}-{end - 1}"})
        if status not in (_OK, _PARTIAL):
            raise self._error(status)
        self._at += len(data)
        return data

    def _error(self, status: int) -> OSError:
        if status == _GONE:
            return FileNotFoundError(2, "the dataset has no such file", self.name)
        if status == _FORBIDDEN:
            return PermissionError(13, "the endpoint refuses the session's keys", self.name)
        if status == _DAMAGED:
            return OSError(
                5,
                "its content is damaged in the object store: nsml dataset push of the same files repairs it",
                self.name,
            )
        return OSError(5, f"the endpoint answers with status {status}", self.name)

    def _request(self, method: str, headers: Dict[str, str]) -> Tuple[int, Any, bytes]:
        """Return status, headers and body; retries while the endpoint does not answer completely."""
        pause_s, longest_s = _PAUSES_S
        until = time.monotonic() + _WITHIN_S
        while True:
            try:
                status, found, body = self._request_once(method, headers)
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                if time.monotonic() > until:
                    raise OSError(5, f"the endpoint does not answer: {error}", self.name) from error
            else:
                if status < _SERVER_ERRORS or time.monotonic() > until:
                    return status, found, body
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def _request_once(self, method: str, headers: Dict[str, str]) -> Tuple[int, Any, bytes]:
        connection = self._connected()
        signed = _signed(method, self._path, str(self._endpoint.netloc), headers)
        connection.request(method, self._path, headers=signed)
        answer = connection.getresponse()
        try:
            body = answer.read()
        except http.client.IncompleteRead as error:
            if answer.status != _PARTIAL or not error.partial:
                raise
            # The rest is requested next, from there on: the same range would be cut off at the same place.
            self._disconnect()
            body = error.partial
        return answer.status, answer.headers, body

    def _connected(self) -> http.client.HTTPConnection:
        """Return the connection of this process: a forked child opens its own."""
        if self._connection is None or self._process != os.getpid():
            host, port = self._endpoint.hostname or "", self._endpoint.port
            self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
            self._process = os.getpid()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _signed(method: str, path: str, host: str, headers: Dict[str, str]) -> Dict[str, str]:
    """Return the headers with a signature: AWS Signature Version 4."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{at[:8]}/{_REGION}/s3/aws4_request"
    all_headers = {**headers, "host": host, "x-amz-content-sha256": _NOTHING, "x-amz-date": at}
    names = ";".join(sorted(all_headers))
    lines = "".join(f"{name}:{all_headers[name]}\n" for name in sorted(all_headers))
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{_NOTHING}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = b"AWS4" + os.environ["NSML_S3_SECRET_ACCESS_KEY"].encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    to_sign = f"{_ALGORITHM}\n{at}\n{scope}\n{digest}"
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    credential = f"{os.environ['NSML_S3_ACCESS_KEY_ID']}/{scope}"
    all_headers["authorization"] = (
        f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return all_headers
