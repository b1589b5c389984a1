"""Create, list and remove users and tokens. Any control plane may do it, leader or not.

Every change is one transaction that compares the records it depends on; after a lost race it is retried.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from controlplane.access.current import by_whom
from controlplane.access.records import (
    JOIN_TOKENS,
    JOINED,
    REMOVED_USERS,
    SECRETS,
    SSH_KEYS,
    TOKENS,
    USERS,
    Removed,
    joined_now,
    secret_key,
    touched,
)
from controlplane.access.secret import RandomBytes, Secret, new_id, new_secret, short
from controlplane.domain.errors import (
    AlreadyExists,
    InvalidRequest,
    LastAdministrator,
    NameReserved,
    NotFound,
    StateConflict,
)
from controlplane.domain.identity import Role, User
from controlplane.domain.names import check_node, check_user
from controlplane.limits.reserved_names import check_not_reserved
from controlplane.store.interface import (
    Compare,
    Delete,
    KeyValueStore,
    Put,
    Transaction,
    absent,
)
from controlplane.stored.etcd_codec import project_key
from controlplane.stored.v1.records_pb2 import TokenRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from controlplane.access.identities import Identities
    from controlplane.store.tables import Stored
    from nsml.common.clock import Clock

DAY_S = 86_400.0
DEFAULT_TOKEN_LIFE_S = 30 * DAY_S
LONGEST_TOKEN_LIFE_S = 366 * DAY_S
MOST_TOKENS = 64
"""Maximum live tokens of one user: their records must be bounded."""

NAME_RESTS_S = 3600.0
"""How long a removed user's name is reserved: until none of their requests is in flight."""

_BATCH = 100

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token; its secret is not stored."""

    secret: Secret
    expires_at: float


async def _nothing(_: str) -> Sequence[str]:
    return ()


class Accounts:
    """Users and tokens.

    Args:
        identities: cache of users and tokens; revocations wait until it has them.
        random_bytes: for secrets and ids.
        owned: returns texts of everything still owned under a name.
    """

    def __init__(
        self,
        store: KeyValueStore,
        identities: Identities,
        *,
        clock: Clock,
        random_bytes: RandomBytes,
        owned: Callable[[str], Awaitable[Sequence[str]]] = _nothing,
    ) -> None:
        self._store = store
        self._identities = identities
        self._owned = owned
        self._clock = clock
        self._random_bytes = random_bytes
        # One at a time: concurrent calls would invalidate each other again and again.
        self._counting = asyncio.Lock()

    async def create_user(self, name: str, role: Role, team: str, *, restore: bool = False) -> User:
        """Create a user; `restore` brings a removed one back, with their id and everything they own.

        Raises:
            InvalidRequest: the name or the team is malformed.
            AlreadyExists: there is one of that name, or a project.
            NameReserved: the name was a removed user's, and is still reserved.
            NotFound: with `restore`, no such user was removed.
        """
        check_user(name)
        if team:
            check_user(team)
        removed = await REMOVED_USERS.get(self._store, name)
        if await USERS.get(self._store, name) is not None:
            raise AlreadyExists(f"user {name} exists")
        if restore:
            # Users removed before there were such records had their name as id.
            if removed is None and not await self._owned(name):
                raise NotFound(f"no user {name} was removed", attempt=f"nsml admin user add {name}")
            user_id = removed.value.user.id if removed is not None else name
        else:
            await self._check_free(name, removed.value.removed_at if removed is not None else None)
            user_id = new_id("u", self._random_bytes)
        user = User(name=name, id=user_id, role=role, team=team, created_at=self._clock.time())
        compares = [
            USERS.absent(name),
            absent(project_key(name)),
            REMOVED_USERS.absent(name) if removed is None else REMOVED_USERS.unchanged(removed),
        ]
        puts: list[Put | Delete] = [USERS.put(name, user), REMOVED_USERS.delete(name)]
        if not await self._write(compares, puts):
            if await USERS.get(self._store, name) is not None:
                raise AlreadyExists(f"user {name} exists")
            raise AlreadyExists(
                f"there is a project {name}",
                why="a user's name is that of their own project",
                attempt="another name for the user",
            )
        _log.info(
            "user.created",
            by=by_whom(),
            user=name,
            role=role.value,
            id=user.id,
            restored=restore,
        )
        return user

    async def _check_free(self, name: str, removed_at: float | None) -> None:
        """Raise NameReserved if something of a removed user may still be under a name."""
        owned = await self._owned(name)
        since = None if removed_at is None else self._clock.time() - removed_at
        if owned:
            why = f"a removed user still owns {', '.join(owned)}: a new user of the name would get them"
        elif since is not None and since < NAME_RESTS_S:
            minutes = math.ceil((NAME_RESTS_S - since) / 60)
            why = f"a user of that name was removed a moment ago; it is free in {minutes} min"
        else:
            return
        raise NameReserved(
            f"the name {name} is reserved",
            why=why,
            attempt=f"another name for another person\n"
            f"nsml admin user add {name} --restore    for the same person, who gets everything back",
        )

    async def list_users(self, *, after: str = "") -> list[User]:
        """List all users by name; those behind `after`."""
        items = (await USERS.list(self._store)).items
        return [item.value for item in items if item.key > after]

    async def get_user(self, name: str) -> User:
        """Return one user; NotFound if there is none."""
        return (await self._stored_user(name)).value

    async def there(self, name: str) -> Compare:
        """Return the condition that a user is unchanged; NotFound if there is none."""
        return USERS.unchanged(await self._stored_user(name))

    async def nobody(self, name: str) -> Compare:
        """Return the condition that there is no user of a name; AlreadyExists if there is one, or NameReserved."""
        if await USERS.get(self._store, name) is not None:
            raise AlreadyExists(
                f"there is a user {name}",
                why="a user's name is that of their own project",
                attempt=f"nsml project create {name} --owner {name}    bounds what {name} has",
            )
        # The removed user's sessions would be charged to a project of that name.
        removed = await REMOVED_USERS.get(self._store, name)
        await self._check_free(name, removed.value.removed_at if removed is not None else None)
        return USERS.absent(name)

    async def limit_kept(self, name: str, kept_bytes: int | None) -> None:
        """Set the limit of a user's bytes in the object store, 0: no limit; None: the platform's default.

        Raises:
            NotFound: there is none.
        """
        while True:
            user = await self._stored_user(name)
            changed = replace(user.value, kept_bytes=kept_bytes)
            if await self._write([USERS.unchanged(user)], [USERS.put(name, changed)]):
                break
        _log.info("user.kept_limit", by=by_whom(), user=name, bytes=kept_bytes)

    async def delete_user(self, name: str) -> None:
        """Remove a user, all their tokens, join tokens, secrets and ssh keys; their sessions stay.

        Raises:
            NotFound: there is none.
            LastAdministrator: there would be no administrator.
        """
        while True:
            user = await self._stored_user(name)
            compares = [USERS.unchanged(user)]
            if user.value.role is Role.ADMIN:
                compares.append(await self._another_administrator(name))
            removed = Removed(user.value, self._clock.time())
            writes: list[Put | Delete] = [USERS.delete(name), REMOVED_USERS.put(name, removed)]
            if await self._write(compares, writes):
                break
        revoked = await self.revoke_all(name)
        secrets = await self._remove_secrets(name)
        joins = await self._remove_join_tokens(name)
        keys = await self._remove_ssh_keys(name)
        _log.info(
            "user.deleted",
            by=by_whom(),
            user=name,
            tokens=revoked,
            secrets=secrets,
            join_tokens=joins,
            ssh_keys=keys,
        )

    async def create_token(self, user: str, life_s: float = 0.0) -> IssuedToken:
        """Create a token for a user; 0 means 30 days.

        Raises:
            InvalidRequest: longer than a year, or not in the future.
            NotFound: no such user.
            StateConflict: the user has too many.
        """
        life_s = life_s or DEFAULT_TOKEN_LIFE_S
        if not 0 < life_s <= LONGEST_TOKEN_LIFE_S:
            raise InvalidRequest("a token is valid for more than nothing and at most a year")
        async with self._counting:
            while True:
                issued = await self._create_token(user, life_s)
                if issued is not None:
                    return issued

    async def _create_token(self, user: str, life_s: float) -> IssuedToken | None:
        """Try once; None after a concurrent write."""
        owner = await self._stored_user(user)
        tokens = await self._tokens_of(user)
        expired = [item for item in tokens if self._has_expired(item)]
        if len(tokens) - len(expired) >= MOST_TOKENS:
            raise StateConflict(
                f"user {user} has {MOST_TOKENS} tokens",
                attempt="nsml logout --revoke    where one is not needed",
            )
        deletes = [TOKENS.delete(item.key) for item in expired[:_BATCH]]
        return await self._issue(
            TokenRecord(user=user), life_s, [USERS.unchanged(owner)], [touched(owner), *deletes]
        )

    async def create_node_token(
        self, node: str, life_s: float = LONGEST_TOKEN_LIFE_S
    ) -> IssuedToken:
        """Create a token for an agent on this machine to act for `node`.

        The name then belongs to this machine: a join token is not enough to take it.

        Raises:
            InvalidRequest: the name is malformed.
            AlreadyExists: another machine has joined under it.
        """
        check_node(node)
        while True:
            known = await JOINED.get(self._store, node)
            if known is not None and not known.value.has_token:
                raise AlreadyExists(
                    f"another machine has joined as {node}", attempt="another name for this node"
                )
            before = JOINED.absent(node) if known is None else JOINED.unchanged(known)
            if known is None:
                check_not_reserved(node, "node")
            joined = known.value if known else joined_now(self._clock, self._random_bytes)
            claim = JOINED.put(node, joined._replace(has_token=True))
            issued = await self._issue(TokenRecord(node=node), life_s, [before], [claim])
            if issued is not None:
                return issued

    async def revoke(self, fingerprint: str) -> int:
        """Make one token invalid; returns how many were valid: 1 or 0."""
        if not fingerprint or await TOKENS.get(self._store, fingerprint) is None:
            return 0
        await self._write([], [TOKENS.delete(fingerprint)])
        _log.info("token.revoked", by=by_whom(), token=short(fingerprint))
        return 1

    async def revoke_all(self, user: str) -> int:
        """Make all tokens of a user invalid; returns how many there were."""
        items = await self._tokens_of(user)
        for start in range(0, len(items), _BATCH):
            await self._write(
                [], [TOKENS.delete(item.key) for item in items[start : start + _BATCH]]
            )
        _log.info("token.all_revoked", by=by_whom(), user=user, tokens=len(items))
        return sum(not self._has_expired(item) for item in items)

    async def _remove_join_tokens(self, user: str) -> int:
        """Remove join tokens of a removed administrator: others may not know of them."""
        made = (await JOIN_TOKENS.list(self._store)).items
        keys = [item.key for item in made if item.value.created_by == user]
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            await self._write([], [JOIN_TOKENS.delete(key) for key in batch])
        return len(keys)

    async def _remove_secrets(self, user: str) -> int:
        """Remove a removed user's secrets. They are already unusable: a new user of the name is newer."""
        left = (await self._store.list(SECRETS.path(secret_key(user, "")), keys_only=True)).items
        for start in range(0, len(left), _BATCH):
            batch = left[start : start + _BATCH]
            await self._write([], [Delete(key=item.key) for item in batch])
        return len(left)

    async def _remove_ssh_keys(self, user: str) -> int:
        """Remove a removed user's public keys, so that other users may add them."""
        left = (await SSH_KEYS.list(self._store)).items
        keys = [item.key for item in left if item.value.user == user]
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            await self._write([], [SSH_KEYS.delete(key) for key in batch])
        return len(keys)

    async def _issue(
        self,
        record: TokenRecord,
        life_s: float,
        compares: list[Compare],
        besides: list[Put | Delete],
    ) -> IssuedToken | None:
        secret = new_secret(self._random_bytes)
        record.created_at = self._clock.time()
        record.expires_at = record.created_at + life_s
        key = secret.fingerprint
        if not await self._write(
            [*compares, TOKENS.absent(key)], [TOKENS.put(key, record), *besides]
        ):
            return None
        whose = record.node or record.user
        _log.info("token.created", by=by_whom(), whose=whose, token=short(secret.fingerprint))
        return IssuedToken(secret=secret, expires_at=record.expires_at)

    async def _write(self, compares: list[Compare], operations: list[Put | Delete]) -> bool:
        result = await self._store.commit(
            Transaction(compares=tuple(compares), success=tuple(operations))
        )
        if result.succeeded:
            await self._identities.caught_up(result.revision)
        return result.succeeded

    async def _stored_user(self, name: str) -> Stored[User]:
        user = await USERS.get(self._store, name) if name else None
        if user is None:
            raise NotFound(f"no user {name[:64]!r}", attempt="nsml admin user ls")
        return user

    async def _tokens_of(self, user: str) -> list[Stored[TokenRecord]]:
        listing = await TOKENS.list(self._store)
        return [item for item in listing.items if item.value.user == user]

    async def _another_administrator(self, name: str) -> Compare:
        """Return the condition that another administrator exists, so that two cannot remove each other."""
        for user in (await USERS.list(self._store)).items:
            if user.value.role is Role.ADMIN and user.value.name != name:
                return USERS.unchanged(user)
        raise LastAdministrator(
            f"{name} is the last administrator", attempt="nsml admin user add NAME --admin"
        )

    def _has_expired(self, item: Stored[TokenRecord]) -> bool:
        return item.value.expires_at <= self._clock.time()
