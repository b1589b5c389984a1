"""Machines become nodes: join tokens, and certificates for those who have one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from controlplane.access.records import JOIN_TOKENS, JOINED, joined_now
from controlplane.access.secret import RandomBytes, new_secret, parse_secret, short
from controlplane.domain.errors import AlreadyExists, InvalidRequest, NotSignedIn
from controlplane.domain.identity import Caller, NodeCaller
from controlplane.domain.names import check_node
from controlplane.operations.reserved import check_not_reserved
from controlplane.store.interface import Delete, Transaction
from controlplane.stored.v1.records_pb2 import JoinTokenRecord

if TYPE_CHECKING:
    from controlplane.access.authority import Authority, SignedNode
    from controlplane.store.interface import KeyValueStore
    from nsml.clock import Clock

DEFAULT_LIFE_S = 3600.0
LONGEST_LIFE_S = 7 * 86_400.0
_SWEPT_AT_ONCE = 100

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedJoinToken:
    """What `nsml join` asks for: SECRET.CA_DIGEST."""

    text: str
    expires_at: float


class Joining:
    """Makes join tokens and signs the requests of machines that present one.

    A join token serves any number of machines until it expires. A node's name belongs to the key
    that joined first.
    """

    def __init__(
        self,
        store: KeyValueStore,
        authority: Authority,
        *,
        clock: Clock,
        random_bytes: RandomBytes,
    ) -> None:
        self._store = store
        self._authority = authority
        self._clock = clock
        self._random_bytes = random_bytes

    @property
    def authority_pem(self) -> bytes:
        """The authority's certificate."""
        return self._authority.pem

    @property
    def authority_digest(self) -> str:
        """Digest of that certificate: whoever knows it can fetch the certificate and check it."""
        return self._authority.digest

    async def create_token(self, created_by: str, life_s: float = 0.0) -> IssuedJoinToken:
        """Make a join token; 0 means an hour.

        Raises:
            InvalidRequest: longer than a week, or not in the future.
        """
        life_s = life_s or DEFAULT_LIFE_S
        if not 0 < life_s <= LONGEST_LIFE_S:
            raise InvalidRequest("a join token is valid for more than nothing and at most a week")
        secret = new_secret(self._random_bytes)
        expires_at = self._clock.time() + life_s
        record = JoinTokenRecord(expires_at=expires_at, created_by=created_by)
        put = JOIN_TOKENS.put(secret.fingerprint, record)
        await self._store.commit(Transaction(success=(put, *await self._expired())))
        _log.info("join_token.created", by=created_by, token=short(secret.fingerprint))
        return IssuedJoinToken(
            text=f"{secret.text}.{self._authority.digest}", expires_at=expires_at
        )

    async def join(
        self, who: Caller, *, secret: str, node: str, signing_request: bytes
    ) -> SignedNode:
        """Sign a node's request, for the holder of a join token or for the node itself.

        Repeating a request whose answer was lost gives a certificate again.

        Raises:
            InvalidRequest: the name or the request is malformed.
            NotSignedIn: the secret is unknown or expired.
            AlreadyExists: a node of that name has joined with another key.
        """
        check_node(node)
        renews = isinstance(who, NodeCaller) and who.node == node
        if not renews:
            await self._check_secret(secret)
            check_not_reserved(node, "node")
        signed = self._authority.sign_node(node, signing_request)
        await self._claim(node, signed.key_fingerprint, renews=renews)
        _log.info("node.signed", node=node, key=short(signed.key_fingerprint), renewed=renews)
        return signed

    async def _check_secret(self, text: str) -> None:
        secret = parse_secret(text)
        known = None
        if secret is not None:
            known = await JOIN_TOKENS.get(self._store, secret.fingerprint)
        if known is None or known.value.expires_at <= self._clock.time():
            raise NotSignedIn(
                "the join token is not valid",
                why="it is unknown or expired",
                attempt="nsml admin join-token",
            )

    async def _claim(self, node: str, fingerprint: str, *, renews: bool) -> None:
        while True:
            known = await JOINED.get(self._store, node)
            if known is not None and known.value.key == fingerprint:
                return
            if known is not None and not renews:
                raise AlreadyExists(
                    f"a node named {node} has joined already",
                    why="it has another key",
                    attempt="nsml join --name ANOTHER",
                )
            before = JOINED.absent(node) if known is None else JOINED.unchanged(known)
            joined = known.value if known else joined_now(self._clock, self._random_bytes)
            joined = joined._replace(key=fingerprint)
            claim = Transaction(compares=(before,), success=(JOINED.put(node, joined),))
            if (await self._store.commit(claim)).succeeded:
                return

    async def _expired(self) -> list[Delete]:
        now = self._clock.time()
        tokens = (await JOIN_TOKENS.list(self._store)).items
        return [JOIN_TOKENS.delete(token.key) for token in tokens if token.value.expires_at <= now][
            :_SWEPT_AT_ONCE
        ]
