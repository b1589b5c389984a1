"""The S3 endpoints of a node: one for each replica that streams datasets, with one cache of chunks for all.

```
<folder>/key                    secret, from which the keys of replicas are derived
<folder>/indexes/<digest>       see index.py; its mtime is the last use
<folder>/chunks/                see chunk_cache.py
```

A replica's listener is its shim's, and its keys follow from the replica's id, so that any later agent can serve it.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import structlog

from nodeagent.folders import ReplicaFolder, ReplicaId, write_atomically
from nodeagent.replica.assignments import dataset_name
from nodeagent.runtimes.visits import NotAdmitted
from nodeagent.storage.other_sources import OtherSources
from nodeagent.storage.reservations import Cancelled
from nodeagent.storage.transfer import get_manifest, uninterrupted
from nodeagent.streaming.chunk_cache import ChunkCache
from nodeagent.streaming.chunk_source import ChunkSource
from nodeagent.streaming.index import Index, build_index
from nodeagent.streaming.requests import REGION, Bucket
from nodeagent.streaming.signatures import Keys
from nsml.client.errors import ClientError, Unavailable
from nsml.client.rpc import Rpc
from nsml.common.clock import Clock, Offload
from nsml.common.concurrency import beside_each_other
from nsml.content.digests import is_digest
from nsml.content.errors import ContentError
from nsml.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from nodeagent.streaming.connections import Bounds

T = TypeVar("T")
_KEY_BYTES: Final = 32
_THREADS: Final = 8
_MOST_INDEXES: Final = 64
_AGAIN_S: Final = (0.02, 0.25)
"""First and longest pause between two checks for a listener, which delay the program's first request."""
_PARTIAL: Final = ".partial"
URL_VARIABLES: Final = ("NSML_S3_ENDPOINT_URL",)
_AWS_URL_VARIABLES: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL")
_ANOTHER_S3: Final = (
    *_AWS_URL_VARIABLES,
    "AWS_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
"""A session with one of these uses an S3 of its own: the endpoint with other keys, or vice versa, would be of no use."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Variables that describe the endpoint to a program: plain ones, secret ones, and those with its URL.

    `note` is for its user, if programs do not find the endpoint by themselves.
    """

    plain: Mapping[str, str]
    secret: Mapping[str, str] = field(repr=False)
    urls: tuple[str, ...]
    note: str = ""


def streamed(spec: sessions.SessionSpec) -> dict[str, str]:
    """Return the digests of the datasets that a session streams, by bucket."""
    return {dataset_name(one): one.digest for one in spec.datasets if one.streamed}


def _few_at_once(run: Offload) -> Offload:
    """Limit `run` for client requests, in their order, to leave processors to the rest of the agent."""
    room = asyncio.Semaphore(_THREADS)

    async def run_in_turn(work: Callable[[], T], /) -> T:
        async with room:
            return await run(work)

    return run_in_turn


class Endpoints:
    """Serves the endpoints of replicas.

    Args:
        folder: private to the agent; created by `create`.
        cache: of chunks, in `folder`.
        rpc: returns the current connection.
        listener: returns the listener of a replica's folder; raises NotAdmitted.
        run_long: runs disk work, in no thread that others wait for.
        pause: awaited before an interrupted fetch is retried.
        others, came: see ChunkSource.
        clock: for the age of signatures.
        bounds: limits for the clients of one session; None: the defaults.
    """

    def __init__(
        self,
        folder: Path,
        cache: ChunkCache,
        *,
        rpc: Callable[[], Rpc],
        listener: Callable[[ReplicaFolder], Awaitable[socket.socket]],
        run_long: Offload,
        pause: Callable[[], Awaitable[None]],
        clock: Clock,
        bounds: Bounds | None = None,
        others: OtherSources | None = None,
        came: Callable[[int, Mapping[str, int]], object] = lambda _, __: None,
    ) -> None:
        self._bounds = bounds
        self._folder = folder
        self._cache = cache
        self._rpc = rpc
        self._listener = listener
        self._run = run = _few_at_once(run_long)
        self._run_long = run_long
        self._pause = pause
        self._clock = clock
        self._source = ChunkSource(cache, rpc=rpc, run=run, pause=pause, others=others, came=came)
        self._turns: dict[str, asyncio.Lock] = {}
        self._key = b""

    def create(self) -> None:
        """Create the folders and the key, if missing, and remove unfinished files."""
        self._indexes.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._indexes.glob(f".*{_PARTIAL}"):
            left.unlink()
        self._cache.create()
        place = self._folder / "key"
        with suppress(FileNotFoundError):
            self._key = place.read_bytes()
        if len(self._key) != _KEY_BYTES:
            self._key = secrets.token_bytes(_KEY_BYTES)
            write_atomically(place, self._key, is_durable=True)

    def close(self) -> None:
        """Stop fetching."""
        self._source.close()

    @property
    def _indexes(self) -> Path:
        return self._folder / "indexes"

    def keys(self, replica: ReplicaId) -> Keys:
        """Return the key pair for the programs of a replica."""
        name = hmac.digest(self._key, f"name {replica}".encode(), "sha256")
        secret = hmac.digest(self._key, f"secret {replica}".encode(), "sha256")
        return Keys(
            access_key_id="NSML" + base64.b32encode(name)[:16].decode(),
            secret=base64.urlsafe_b64encode(secret).rstrip(b"=").decode(),
        )

    def variables(self, replica: ReplicaId, spec: sessions.SessionSpec) -> Variables:
        """Return variables that describe the endpoint to a program, except those set by its user."""
        keys, names = self.keys(replica), streamed(spec)
        plain = {
            "NSML_STREAMED": os.pathsep.join(names),
            "NSML_S3_ACCESS_KEY_ID": keys.access_key_id,
        }
        secret = {"NSML_S3_SECRET_ACCESS_KEY": keys.secret}
        given = {*spec.environment, *(one.variable or one.name for one in spec.secrets)}
        if own := sorted(given.intersection(_ANOTHER_S3)):
            note = (
                f"{own[0]} is set: S3 clients use that, and read streamed datasets only with"
                " NSML_S3_ENDPOINT_URL, NSML_S3_ACCESS_KEY_ID and NSML_S3_SECRET_ACCESS_KEY"
            )
            return Variables(plain=plain, secret=secret, urls=URL_VARIABLES, note=note)
        plain |= {
            "AWS_ACCESS_KEY_ID": keys.access_key_id,
            # obstore, Polars and other users of object_store refuse http otherwise
            "AWS_ALLOW_HTTP": "true",
        }
        plain |= {
            name: REGION for name in ("AWS_REGION", "AWS_DEFAULT_REGION") if name not in given
        }
        secret["AWS_SECRET_ACCESS_KEY"] = keys.secret
        return Variables(plain=plain, secret=secret, urls=(*URL_VARIABLES, *_AWS_URL_VARIABLES))

    async def prepare(self, spec: sessions.SessionSpec) -> None:
        """Fetch and index the manifests of a session's datasets. Raises ClientError, ContentError, OSError."""
        for digest in streamed(spec).values():
            (await self._index(digest)).close()

    @asynccontextmanager
    async def serving(
        self, replica: ReplicaId, folder: ReplicaFolder, spec: sessions.SessionSpec
    ) -> AsyncIterator[None]:
        """Serve a replica's endpoint while the context lasts, once its shim has a listener."""
        if not streamed(spec):
            yield
            return
        async with beside_each_other() as group:
            serving = group.create_task(self._try_to_serve(replica, folder, spec))
            try:
                yield
            finally:
                serving.cancel()

    async def _try_to_serve(
        self, replica: ReplicaId, folder: ReplicaFolder, spec: sessions.SessionSpec
    ) -> None:
        """Serve; a failure must not end the replica."""
        try:
            await self._serve(replica, folder, spec)
        except Exception:
            log.exception("stream.ended", replica=str(replica))

    async def _serve(
        self, replica: ReplicaId, folder: ReplicaFolder, spec: sessions.SessionSpec
    ) -> NoReturn:
        from nodeagent.streaming.connections import Bounds, Connections  # noqa: PLC0415 - most nodes need none
        from nodeagent.streaming.endpoint import Endpoint  # noqa: PLC0415

        async with AsyncExitStack() as stack:
            for root in set(streamed(spec).values()):
                await stack.enter_async_context(self._source.reading(root))
            buckets = {
                name: Bucket(
                    root=root, index=stack.enter_context(await self._insist(replica, root))
                )
                for name, root in streamed(spec).items()
            }
            endpoint = Endpoint(
                self.keys(replica), buckets, self._source, run=self._run, clock=self._clock
            )
            listener = stack.enter_context(await self._listening(folder))
            await Connections(endpoint, self._clock, self._bounds or Bounds()).serve(listener)
        raise AssertionError

    async def _listening(self, folder: ReplicaFolder) -> socket.socket:
        """Return the listener of a replica, once there is one."""
        pause_s, longest_s = _AGAIN_S
        while True:
            try:
                listener = await self._listener(folder)
            except NotAdmitted:  # its program has not started, or has ended
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
            else:
                listener.setblocking(False)  # noqa: FBT003
                return listener

    async def _insist(self, replica: ReplicaId, digest: str) -> Index:
        """Return the index of a dataset, retrying without end: it was here when the replica was prepared."""
        while True:
            try:
                return await self._index(digest)
            except (ClientError, ContentError, OSError) as error:
                log.warning("stream.not_served", replica=str(replica), error=str(error))
                await self._pause()

    async def _index(self, digest: str) -> Index:
        """Return the index of a dataset, built once for all. Raises ClientError, ContentError, OSError."""
        if not is_digest(digest):
            raise ContentError(f"not a digest: {digest[:80]!r}")
        path = self._indexes / digest
        async with self._turns.setdefault(digest, asyncio.Lock()):
            if not await self._run(path.exists):
                await self._make(digest, path)
            return await self._run(partial(self._opened, path))

    def _opened(self, path: Path) -> Index:
        os.utime(path)
        try:
            return Index(path)
        except OSError:
            path.unlink(missing_ok=True)  # it is rebuilt the next time
            raise

    async def _make(self, digest: str, path: Path) -> None:
        staged = self._indexes / f".{secrets.token_hex(8)}{_PARTIAL}"
        cancelled = threading.Event()

        def look() -> None:
            if cancelled.is_set():
                raise Cancelled

        try:
            while not await self._fetched(digest, staged):
                await self._pause()
            build = partial(build_index, staged, path, look)
            await uninterrupted(self._run_long, build, cancel=cancelled.set)
            await self._run(self._remove_old)
        finally:
            staged.unlink(missing_ok=True)

    async def _fetched(self, digest: str, target: Path) -> bool:
        """Fetch the manifest to `target`; False: the control plane is unreachable."""
        with target.open("wb") as file:
            try:
                await get_manifest(
                    self._rpc(),
                    digest,
                    lambda data: uninterrupted(self._run, partial(file.write, data)),
                )
            except Unavailable:
                return False
        return True

    def _remove_old(self) -> None:
        """Keep the indexes used last, and remove others; an open one stays readable."""
        with suppress(FileNotFoundError):  # a concurrent call removed one
            found = [one for one in self._indexes.iterdir() if is_digest(one.name)]
            found.sort(key=lambda one: -one.stat().st_mtime)
            for one in found[_MOST_INDEXES:]:
                one.unlink()
