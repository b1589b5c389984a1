"""Machines become nodes: join tokens, and certificates for their holders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from controlplane.access.records import BARRED, JOIN_TOKENS, JOINED, TOKENS, joined_now
from controlplane.access.secret import RandomBytes, new_secret, parse_secret, short
from controlplane.domain.errors import AlreadyExists, Denied, InvalidRequest, NotSignedIn
from controlplane.domain.identity import Caller, NodeCaller
from controlplane.domain.names import check_node
from controlplane.limits.reserved_names import check_not_reserved
from controlplane.store.interface import Delete, Transaction
from controlplane.stored.v1.records_pb2 import BarredKeyRecord, JoinTokenRecord

if TYPE_CHECKING:
    from controlplane.access.authority import Authority, SignedNode
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

DEFAULT_LIFE_S = 3600.0
LONGEST_LIFE_S = 7 * 86_400.0
_SWEPT_AT_ONCE = 100

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedJoinToken:
    """A join token for `nsml join`: SECRET.CA_DIGEST."""

    text: str
    expires_at: float


class Joining:
    """Creates join tokens and signs the requests of machines that present one.

    A join token is valid for any number of machines until it expires. A node's name belongs to the key
    that joined first.

    Attributes:
        refused: number of refused attempts to join; `refused_at`: time of the last one (Unix
            seconds), `last_refusal`: its node and reason.
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
        self.refused = 0
        self.refused_at = 0.0
        self.last_refusal = ""

    @property
    def authority_pem(self) -> bytes:
        """The authority's certificate."""
        return self._authority.pem

    @property
    def authority_digest(self) -> str:
        """Digest of that certificate, to check a fetched one."""
        return self._authority.digest

    async def create_token(self, created_by: str, life_s: float = 0.0) -> IssuedJoinToken:
        """Create a join token; 0 means an hour.

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

        A repeated request, after a lost response, gets a certificate again.

        Raises:
            InvalidRequest: the name or the request is malformed.
            NotSignedIn: the secret is unknown or expired.
            AlreadyExists: a node of that name has joined with another key.
            Denied: the key was revoked.
        """
        check_node(node)
        try:
            return await self._join(who, secret, node, signing_request)
        except (NotSignedIn, AlreadyExists, Denied) as error:
            self.refused += 1
            self.refused_at = self._clock.time()
            self.last_refusal = f"node {node}: {error.message}"
            _log.warning("node.join_refused", node=node, reason=error.message)
            raise

    async def _join(
        self, who: Caller, secret: str, node: str, signing_request: bytes
    ) -> SignedNode:
        renewing = who if isinstance(who, NodeCaller) and who.node == node else None
        if renewing is None:
            await self._check_secret(secret)
            check_not_reserved(node, "node")
        signed = self._authority.sign_node(node, signing_request)
        await self._claim(node, signed, renewing=renewing)
        _log.info(
            "node.signed",
            node=node,
            key=short(signed.key_fingerprint),
            renewed=renewing is not None,
        )
        return signed

    async def forget(self, node: str, *, by: str, bars_key: bool) -> bool:
        """Free a node's name and invalidate its certificate at once. Return whether the name was used.

        A control plane's own machine keeps its name and its token, which only it has, unless its key is
        barred. A machine that joins later under the name is a different node.
        """
        while True:
            known = await JOINED.get(self._store, node)
            if known is None:
                return False
            key, keeps = known.value.key, known.value.has_token and not bars_key
            changes = [
                JOINED.put(node, known.value._replace(key="", ends_at=0.0))
                if keeps
                else JOINED.delete(node)
            ]
            if not keeps:
                tokens = (await TOKENS.list(self._store)).items
                changes += [TOKENS.delete(one.key) for one in tokens if one.value.node == node]
            if bars_key and key:
                barred = BarredKeyRecord(node=node, barred_by=by, barred_at=self._clock.time())
                changes.append(BARRED.put(key, barred))
            done = await self._store.commit(
                Transaction(compares=(JOINED.unchanged(known),), success=tuple(changes))
            )
            if done.succeeded:
                _log.info("node.forgotten", node=node, by=by, key=short(key), barred=bars_key)
                return True

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

    async def _claim(self, node: str, signed: SignedNode, *, renewing: NodeCaller | None) -> None:
        key = signed.key_fingerprint
        while True:
            known = await JOINED.get(self._store, node)
            # Removed since it was authenticated.
            is_gone = known is None and renewing is not None and renewing.joined_at > 0
            if is_gone or await BARRED.get(self._store, key) is not None:
                raise Denied(
                    f"the key of node {node} was revoked, or its name was removed",
                    why="an administrator ran nsml node rm",
                    attempt=f"nsml join HOST:PORT --name {node}   with another data folder and a new "
                    "token (nsml admin join-token)",
                )
            if known is not None and known.value.key != key and renewing is None:
                raise AlreadyExists(
                    f"a node named {node} has joined already",
                    why="it has another key",
                    attempt=f"nsml node rm {node}   if that machine was reinstalled or is gone\n"
                    "nsml join --name ANOTHER",
                )
            before = JOINED.absent(node) if known is None else JOINED.unchanged(known)
            joined = known.value if known else joined_now(self._clock, self._random_bytes)
            joined = joined._replace(key=key, ends_at=signed.expires_at)
            claim = Transaction(
                compares=(before, BARRED.absent(key)), success=(JOINED.put(node, joined),)
            )
            if (await self._store.commit(claim)).succeeded:
                return

    async def _expired(self) -> list[Delete]:
        now = self._clock.time()
        tokens = (await JOIN_TOKENS.list(self._store)).items
        return [JOIN_TOKENS.delete(token.key) for token in tokens if token.value.expires_at <= now][
            :_SWEPT_AT_ONCE
        ]
