"""Users' public keys for ssh. Any control plane may change them, leader or not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.access.current import by_whom
from controlplane.access.records import SSH_KEYS, USERS, touched
from controlplane.domain.errors import AlreadyExists, InvalidRequest, NotFound, TooLarge
from controlplane.store.interface import Transaction
from controlplane.stored.v1.records_pb2 import SshKeyRecord
from nsml.spec.ssh_keys import NAME_RULE, NotAPublicKey, is_name, parse_public_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.access.identities import Identities
    from controlplane.domain.identity import User
    from controlplane.store.interface import Compare, Delete, KeyValueStore, Put
    from controlplane.store.tables import Stored
    from nsml.common.clock import Clock
    from nsml.spec.ssh_keys import PublicKey

MOST_KEYS: Final = 50
"""Maximum of one user."""
_USED_EVERY_S: Final = 60.0
"""Resolution of the recorded time of use."""
_LIST: Final = "nsml key ls"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """A key of a user. Times in Unix seconds; `used_at` 0: never."""

    name: str
    public_key: str
    fingerprint: str
    added_at: float
    used_at: float


class UserKeys:
    """Public keys of all users.

    Args:
        identities: cache of identities; removals wait until it includes them.
    """

    def __init__(self, store: KeyValueStore, identities: Identities, *, clock: Clock) -> None:
        self._store = store
        self._identities = identities
        self._clock = clock
        # One at a time: concurrent changes would conflict again and again.
        self._counting = asyncio.Lock()

    async def add(self, owner: str, line: str, name: str) -> KeyFacts:
        """Add a key to a user's; "" for a name derived from it.

        Raises:
            InvalidRequest: the key is not accepted, or the name.
            AlreadyExists: a user has this key, or the owner another one of this name.
            TooLarge: the owner has too many.
            NotFound: the owner was removed.
        """
        try:
            key = parse_public_key(line)
        except NotAPublicKey as error:
            raise InvalidRequest(str(error), why=error.why, attempt=error.advice) from error
        if name and not is_name(name):
            raise InvalidRequest(f"{name[:80]!r} is no name of a key", why=NAME_RULE)
        async with self._counting:
            while (facts := await self._add(owner, key, name or key.usual_name)) is None:
                pass
        _log.info("ssh_key.added", user=owner, name=facts.name, key=facts.fingerprint)
        return facts

    async def _add(self, owner: str, key: PublicKey, name: str) -> KeyFacts | None:
        """Try once; return None after a concurrent write."""
        user = await self._user(owner)
        known = await SSH_KEYS.get(self._store, key.digest)
        if known is not None:
            if await self._is_of_user(known):
                raise _taken(known.value, owner)
            # Of a removed user: a new record would be as old as it is.
            await self._write([SSH_KEYS.unchanged(known)], [SSH_KEYS.delete(key.digest)])
            return None
        of_owner = await self._of(user)
        if any(one.value.name == name for one in of_owner):
            raise AlreadyExists(
                f"you have another key {name}", attempt=f"--name ANOTHER\nnsml key rm {name}"
            )
        if len(of_owner) >= MOST_KEYS:
            raise TooLarge(f"a user has at most {MOST_KEYS} keys", attempt=_LIST)
        record = SshKeyRecord(
            user=owner, name=name, public_key=key.text, added_at=self._clock.time()
        )
        compares = [USERS.unchanged(user), SSH_KEYS.absent(key.digest)]
        writes = [SSH_KEYS.put(key.digest, record), touched(user)]
        return _facts(record) if await self._write(compares, writes) else None

    async def listed(self, owner: str) -> list[KeyFacts]:
        """The keys of a user by name; NotFound if there is no such user."""
        found = await self._of(await self._user(owner))
        return sorted((_facts(one.value) for one in found), key=lambda facts: facts.name)

    async def remove(self, owner: str, name: str) -> None:
        """Remove a key by its name or fingerprint; NotFound if there is no such user or key."""
        for one in await self._of(await self._user(owner)):
            facts = _facts(one.value)
            if name in {facts.name, facts.fingerprint}:
                await self._write([], [SSH_KEYS.delete(one.key)])
                _log.info("ssh_key.removed", by=by_whom(), user=owner, name=facts.name)
                return
        raise NotFound(f"{owner} has no key {name[:80]!r}", attempt=_LIST)

    async def used(self, owner: str, digest: str) -> tuple[bytes, ...]:
        """Record the use of a key; return SHA-256 of each key of its owner.

        NotFound: there is no such user (any more).
        """
        found = await self._of(await self._user(owner))
        known = next((one for one in found if one.key == digest), None)
        now = self._clock.time()
        if known is not None and now - known.value.used_at >= _USED_EVERY_S:
            record = SshKeyRecord()
            record.CopyFrom(known.value)
            record.used_at = now
            # a concurrent writer recorded it, too, or has removed it
            await self._write([SSH_KEYS.unchanged(known)], [SSH_KEYS.put(digest, record)])
        return tuple(bytes.fromhex(one.key) for one in found)

    async def _user(self, name: str) -> Stored[User]:
        user = await USERS.get(self._store, name) if name else None
        if user is None:
            raise NotFound(f"no user {name[:64]!r}", attempt="nsml admin user ls")
        return user

    async def _of(self, user: Stored[User]) -> list[Stored[SshKeyRecord]]:
        """Return the keys of a user; not those of an earlier user of that name."""
        listing = await SSH_KEYS.list(self._store)
        return [
            one
            for one in listing.items
            if one.value.user == user.value.name and one.create_revision > user.create_revision
        ]

    async def _is_of_user(self, known: Stored[SshKeyRecord]) -> bool:
        user = await USERS.get(self._store, known.value.user)
        return user is not None and known.create_revision > user.create_revision

    async def _write(self, compares: list[Compare], operations: Sequence[Put | Delete]) -> bool:
        result = await self._store.commit(
            Transaction(compares=tuple(compares), success=tuple(operations))
        )
        if result.succeeded:
            await self._identities.caught_up(result.revision)
        return result.succeeded


def _taken(record: SshKeyRecord, owner: str) -> AlreadyExists:
    """Another owner of the key is not named."""
    if record.user == owner:
        return AlreadyExists(f"you have this key already: {record.name}", attempt=_LIST)
    return AlreadyExists(
        "this key is another user's",
        why="a key says who connects, so it has one owner",
        attempt="ssh-keygen -t ed25519 -f ~/.ssh/id_nsml",
    )


def _facts(record: SshKeyRecord) -> KeyFacts:
    return KeyFacts(
        name=record.name,
        public_key=record.public_key,
        fingerprint=parse_public_key(record.public_key).fingerprint,
        added_at=record.added_at,
        used_at=record.used_at,
    )
