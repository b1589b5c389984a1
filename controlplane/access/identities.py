"""Owners of credentials, cached in memory and updated by a watch."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, TypeVar

import structlog

from controlplane.access.authority import PEER_PREFIX, ShownCertificate, read_certificate
from controlplane.access.records import JOINED, SSH_KEYS, TOKENS, USERS, Joined
from controlplane.domain.errors import RETRY_AFTER_S, Unavailable
from controlplane.domain.identity import Caller, JumpHostCaller, NodeCaller, PeerCaller, UserCaller
from controlplane.store.cache import TableCache
from controlplane.store.interface import KeyValueStore, StoreError

if TYPE_CHECKING:
    from controlplane.access.secret import Secret
    from controlplane.store.tables import Stored, Table
    from controlplane.stored.v1.records_pb2 import TokenRecord
    from nsml.common.clock import Clock

T = TypeVar("T")

_MOST_CERTIFICATES = 20_000
_CATCH_UP_S = 1.0


class Identities:
    """Users, tokens and joined nodes in memory; `run` follows the store.

    A credential that is not cached is looked up in the store, so that one created a moment ago at
    another control plane is valid here at once. One revoked elsewhere is refused here as soon as
    the watch reports it: well within a second.
    """

    def __init__(self, store: KeyValueStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cache = TableCache(store, (USERS, TOKENS, JOINED, SSH_KEYS), clock=clock)
        self._certificates: dict[bytes, ShownCertificate] = {}
        # Expiry by key, for nodes that joined before their records had it.
        self._ends: dict[str, float] = {}
        self._jump_host: Secret | None = None
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Follow the store until cancelled; raises what `TableCache.run` raises."""
        await self._cache.run()

    async def of_secret(self, secret: Secret, *, thorough: bool) -> Caller | None:
        """Return a token's owner; None if it is unknown, expired or revoked.

        Without `thorough` only memory is consulted.

        Raises:
            Unavailable: a lookup in the store is needed, and it does not answer.
        """
        token = await self._record(TOKENS, secret.fingerprint, thorough=thorough)
        if token is None or token.value.expires_at <= self._clock.time():
            return None
        if token.value.node:
            return await self._of_node(token, thorough=thorough)
        return await self._of_user(token, thorough=thorough)

    def admit_jump_host(self, secret: Secret) -> None:
        """Set the secret of this control plane's own jump host, replacing any other."""
        self._jump_host = secret

    def is_jump_host(self, secret: Secret) -> bool:
        """Return whether it is that secret."""
        known = self._jump_host
        return known is not None and hmac.compare_digest(known.fingerprint, secret.fingerprint)

    async def of_ssh_key(self, digest: str) -> JumpHostCaller | None:
        """Return the caller for a jump host's call with a public key, by its SHA-256; None if no user has it (any more).

        Raises:
            Unavailable: a lookup in the store is needed, and it does not answer.
        """
        key = await self._record(SSH_KEYS, digest, thorough=True)
        if key is None:
            return None
        user = await self._record(USERS, key.value.user, thorough=True)
        # As for tokens.
        if user is None or key.create_revision < user.create_revision:
            return None
        return JumpHostCaller(user=user.value, key=key.key, key_name=key.value.name)

    async def of_certificate(self, node: str, certificate: bytes) -> Caller | None:
        """Return the node of a verified certificate (PEM); None if it is no longer valid.

        Or the control plane: only a holder of the authority's key can issue its certificate.

        It was valid when its connection was made: connections outlive certificates.

        Raises:
            Unavailable: a lookup in the store is needed, and it does not answer.
        """
        shown = self._read(certificate)
        if shown.expires_at <= self._clock.time():
            return None
        if node.startswith(PEER_PREFIX):
            return PeerCaller(member=node.removeprefix(PEER_PREFIX))
        expected = await self._record(JOINED, node, thorough=True)
        if expected is not None and expected.value.key != shown.key_fingerprint:
            expected = await self._stored(JOINED, node)  # signed a moment ago, as with secrets
        if expected is None or expected.value.key != shown.key_fingerprint:
            return None
        self._ends[shown.key_fingerprint] = shown.expires_at
        return _node(node, expected.value)

    def certificate_ends(self, node: str) -> float:
        """Return the expiry of a node's certificate, Unix seconds; 0 if unknown."""
        known = self._cache.get(JOINED, node)
        if known is None or not known.value.key:
            return 0.0
        return known.value.ends_at or self._ends.get(known.value.key, 0.0)

    def has_others(self, user: str) -> bool:
        """Return whether other users than this one have accounts, by memory; True if memory has no users."""
        names = self._cache.records(USERS).keys()
        return not names or any(name != user for name in names)

    def ids(self) -> dict[str, str]:
        """Return names of users by their ids, from memory."""
        return {one.value.id: name for name, one in self._cache.records(USERS).items()}

    def kept_limit(self, user: str) -> int | None:
        """Return a user's own limit of bytes in the object store, 0: unlimited; None: not set."""
        known = self._cache.get(USERS, user)
        return None if known is None else known.value.kept_bytes

    async def caught_up(self, revision: int) -> None:
        """Return once memory is at `revision`, or after a second.

        The store has it in any case; only memory lags while the store is unreachable.
        """
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await self._cache.wait_for(revision)
        except TimeoutError:
            self._log.warning("access.memory_lags", wanted=revision, known=self._cache.revision)

    async def _of_user(self, token: Stored[TokenRecord], *, thorough: bool) -> Caller | None:
        user = await self._record(USERS, token.value.user, thorough=thorough)
        # A token of a removed user must not become valid again for a new user of that name. The store's
        # revisions order them; clocks of control planes differ and step back.
        if user is None or token.create_revision < user.create_revision:
            return None
        return UserCaller(user=user.value, token=token.key)

    async def _of_node(self, token: Stored[TokenRecord], *, thorough: bool) -> Caller | None:
        node = token.value.node
        joined = await self._record(JOINED, node, thorough=thorough)
        # As for users: a token does not become valid again when another machine has the name.
        if joined is not None and token.create_revision < joined.create_revision:
            return None
        return _node(node, joined.value if joined is not None else Joined())

    async def _record(self, table: Table[T], key: str, *, thorough: bool) -> Stored[T] | None:
        known = self._cache.get(table, key)
        return await self._stored(table, key) if known is None and thorough else known

    async def _stored(self, table: Table[T], key: str) -> Stored[T] | None:
        try:
            return await table.get(self._store, key)
        except StoreError as error:
            self._log.warning("access.store_unavailable", error=str(error))
            raise Unavailable(
                "your identity cannot be checked now", retry_after_s=RETRY_AFTER_S
            ) from error

    def _read(self, certificate: bytes) -> ShownCertificate:
        known = self._certificates.get(certificate)
        if known is None:
            if len(self._certificates) >= _MOST_CERTIFICATES:
                self._certificates.clear()
            known = self._certificates[certificate] = read_certificate(certificate)
        return known


def _node(name: str, joined: Joined) -> NodeCaller:
    return NodeCaller(node=name, id=joined.id, joined_at=joined.joined_at)
