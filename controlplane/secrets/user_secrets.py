"""Users' secrets: set, listed, removed, and decrypted only for their owner's programs."""

from __future__ import annotations

import asyncio
import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from controlplane.access.records import SECRETS, USERS, secret_key, touched
from controlplane.access.vault import NotOpened
from controlplane.domain.errors import InvalidRequest, NotFound, TooLarge
from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.names import check_secret
from controlplane.domain.notices import EARLIER_EVENTS, WebhookEvent
from controlplane.domain.values import Launcher, RegistryLogin
from controlplane.store.interface import Get, StoreError, Transaction
from controlplane.stored import etcd_codec
from controlplane.stored.v1.records_pb2 import SecretRecord
from nsml.spec.images import login_registry, registry_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from controlplane.access.vault import Vault
    from controlplane.domain.identity import User
    from controlplane.domain.values import SecretUse, Session
    from controlplane.state.desired_replicas import Assignment, Orders
    from controlplane.store.interface import Compare, Delete, KeyValue, KeyValueStore, Put
    from controlplane.store.tables import Stored
    from nsml.common.clock import Clock

MOST_SECRETS: Final = 100
"""Maximum of one user."""
MOST_SECRET_BYTES: Final = 32 << 10
"""Maximum of one value; with the maximum per session, this keeps its order within one message."""

_WEBHOOK: Final = "webhook-url"
"""Stored beside a user's secrets, under a name that no secret can have: programs never get it."""

_LOGIN: Final = "registry-login:"
"""Prefix of the names of registry logins, before HOST[:PORT]; reserved like the webhook's."""
MOST_LOGINS: Final = 16
"""Maximum of one user."""
MOST_PASSWORD_BYTES: Final = 8 << 10
_LONGEST_USER: Final = 256

GANG_SECRET: Final = "NSML_GANG_SECRET"  # noqa: S105 - the name of a variable
"""Variable of launchers that start processes on other replicas: nsml/_remote_start.py."""
_LAUNCHERS_OF_GANGS: Final = frozenset({Launcher.MPIRUN, Launcher.RAY})

_AGAIN_S: Final = 1.0
"""Between two tries to re-encrypt secrets."""

_MOST_NAMED: Final = 5
_NOT_STARTED: Final = frozenset({ReplicaPhase.PLACED, ReplicaPhase.PREPARING})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFacts:
    """The visible part of a secret. Times in Unix seconds."""

    name: str
    size_bytes: int
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSecret:
    """A variable of a program with its value, or with the reason for having none."""

    variable: str
    value: str = field(default="", repr=False)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginFacts:
    """The visible part of a registry login. `updated_at` in Unix seconds."""

    registry: str
    registry_user: str
    updated_at: float


class OpenedWebhook(NamedTuple):
    """A webhook of a user; `set_at` in Unix seconds, `owner_id` of the user."""

    url: str
    set_at: float
    events: tuple[WebhookEvent, ...]
    owner_id: str


class UserSecrets:
    """Secrets of all users. Any control plane with the vault's keys may use them, leader or not."""

    def __init__(self, store: KeyValueStore, vault: Vault, *, clock: Clock) -> None:
        self._store = store
        self._vault = vault
        self._clock = clock
        # One at a time: concurrent changes would conflict again and again.
        self._counting = asyncio.Lock()

    async def put(self, owner: str, name: str, value: bytes) -> SecretFacts:
        """Make a secret, or replace its value.

        Raises:
            InvalidRequest: the name, or a value that no variable can hold.
            TooLarge: the value is too long, or there are too many secrets.
            NotFound: the owner was removed.
        """
        check_secret(name)
        _check_value(value)
        return await self._put_in_turn(owner, name, value)

    async def put_webhook(self, owner: str, url: str, events: Sequence[WebhookEvent]) -> float:
        """Set a user's webhook; return the time, Unix seconds. NotFound: the owner was removed."""
        facts = await self._put_in_turn(owner, _WEBHOOK, url.encode(), events=events)
        return facts.updated_at

    async def webhook_events(self, owners: Collection[str]) -> dict[str, tuple[WebhookEvent, ...]]:
        """Return the events of these users' webhooks, without users that have none; one read.

        A webhook left by an earlier user of the name is included: `webhook` detects that.

        Raises:
            StoreError: the store does not answer.
        """
        reads = tuple(SECRETS.read(secret_key(owner, _WEBHOOK)) for owner in owners)
        result = await self._store.commit(Transaction(compares=(), success=reads))
        return {
            owner: _events(SECRETS.stored(one.item).value)
            for owner, one in zip(owners, result.responses, strict=True)
            if one.item is not None
        }

    async def webhook(self, owner: str) -> OpenedWebhook | None:
        """Return a user's webhook; None: there is none, or no key decrypts it.

        Raises:
            NotFound: there is no such user.
        """
        user = await self._user(owner)
        known = await SECRETS.get(self._store, secret_key(owner, _WEBHOOK))
        if known is None or known.create_revision < user.create_revision:
            return None
        try:
            url = self._vault.open(known.value.sealed, owner=owner, name=_WEBHOOK)
        except NotOpened:
            _log.error("secret.not_opened", user=owner, name=_WEBHOOK)
            return None
        return OpenedWebhook(
            url.decode(), known.value.updated_at, _events(known.value), user.value.id
        )

    async def remove_webhook(self, owner: str) -> None:
        """Remove a user's webhook, if there is one."""
        await self._write([], [SECRETS.delete(secret_key(owner, _WEBHOOK))])
        _log.info("secret.removed", user=owner, name=_WEBHOOK)

    async def _put_in_turn(
        self,
        owner: str,
        name: str,
        value: bytes,
        *,
        events: Sequence[WebhookEvent] = (),
        registry_user: str = "",
    ) -> SecretFacts:
        async with self._counting:
            while True:
                facts = await self._put(owner, name, value, events, registry_user)
                if facts is not None:
                    _log.info("secret.set", user=owner, name=name)
                    return facts

    async def _put(
        self,
        owner: str,
        name: str,
        value: bytes,
        events: Sequence[WebhookEvent],
        registry_user: str,
    ) -> SecretFacts | None:
        """Try once; return None after a concurrent write."""
        key, user = secret_key(owner, name), await self._user(owner)
        known = await SECRETS.get(self._store, key)
        if known is not None and known.create_revision < user.create_revision:
            # From an earlier user of that name: a new value would be as old as it is.
            await self._write([SECRETS.unchanged(known)], [SECRETS.delete(key)])
            return None
        if known is None and name.startswith(_LOGIN):
            if len(await self._of(user, logins=True)) >= MOST_LOGINS:
                text = f"a user has at most {MOST_LOGINS} logins at registries"
                raise TooLarge(text, attempt="nsml image logins")
        elif known is None and len(await self._of(user)) >= MOST_SECRETS:
            raise TooLarge(f"a user has at most {MOST_SECRETS} secrets", attempt="nsml secret ls")
        now = self._clock.time()
        record = SecretRecord(
            sealed=self._vault.seal(value, owner=owner, name=name),
            key_id=self._vault.key_id,
            size_bytes=len(value),
            created_at=(known and known.value.created_at) or now,
            updated_at=now,
            events=events,
            registry_user=registry_user,
        )
        before = SECRETS.absent(key) if known is None else SECRETS.unchanged(known)
        writes = [SECRETS.put(key, record)]
        if known is None:
            writes.append(touched(user))
        if not await self._write([USERS.unchanged(user), before], writes):
            return None
        return _facts(name, record)

    async def put_login(
        self, owner: str, registry: str, registry_user: str, password: bytes
    ) -> LoginFacts:
        """Set a user's login at a registry. Raises as `put`."""
        try:
            where = login_registry(registry)
        except ValueError as error:
            raise InvalidRequest(f"{registry[:80]!r} is not a registry", why=str(error)) from None
        if not 0 < len(registry_user) <= _LONGEST_USER or not registry_user.isprintable():
            raise InvalidRequest("a login has the name of a user", why="printable characters")
        _check_value(password, what="password", most_bytes=MOST_PASSWORD_BYTES)
        facts = await self._put_in_turn(
            owner, f"{_LOGIN}{where}", password, registry_user=registry_user
        )
        return LoginFacts(registry=where, registry_user=registry_user, updated_at=facts.updated_at)

    async def logins(self, owner: str) -> list[LoginFacts]:
        """The logins of a user by registry; NotFound if there is no such user."""
        found = await self._of(await self._user(owner), keys_only=False, logins=True)
        records = [(name, SECRETS.stored(item).value) for name, item in found.items()]
        return [
            LoginFacts(
                registry=name.removeprefix(_LOGIN),
                registry_user=record.registry_user,
                updated_at=record.updated_at,
            )
            for name, record in records
        ]

    async def remove_login(self, owner: str, registry: str) -> None:
        """Remove a login; NotFound if there is no such user or login."""
        known = [one.registry for one in await self.logins(owner)]
        try:
            where = login_registry(registry)
        except ValueError:
            where = ""
        if where not in known:
            there = f"there is {', '.join(known) or 'none'}"
            raise NotFound(f"{owner} has no login at {registry[:80]!r}", why=there)
        name = f"{_LOGIN}{where}"
        await self._write([], [SECRETS.delete(secret_key(owner, name))])
        _log.info("secret.removed", user=owner, name=name)

    async def logins_for(self, user: User, image: str) -> tuple[RegistryLogin, ...]:
        """Return a user's logins at the registry of an image; "": unknown yet, so all logins.

        Raises:
            NotFound: there is no such user.
            StoreError: the store does not answer.
        """
        stored = await self._user(user.name)
        return await self._opened_logins(stored.value.name, image, stored.create_revision)

    async def _opened_logins(self, owner: str, image: str, since: int) -> tuple[RegistryLogin, ...]:
        """Return the logins set since a revision, chosen as in `logins_for`."""
        under = SECRETS.path(secret_key(owner, ""))
        of_image = registry_of(image) if image else ""
        listing = await self._store.list(f"{under}{_LOGIN}{of_image}")
        opened = []
        for item in listing.items:
            name = item.key.removeprefix(under)
            registry = name.removeprefix(_LOGIN)
            if item.create_revision < since or (of_image and registry != of_image):
                continue
            stored = SECRETS.stored(item)
            try:
                password = self._vault.open(stored.value.sealed, owner=owner, name=name).decode()
            except (NotOpened, UnicodeDecodeError):
                _log.error("secret.not_opened", user=owner, name=name)
                continue
            opened.append(
                RegistryLogin(
                    registry=registry,
                    user=stored.value.registry_user,
                    password=password,
                    version=round(stored.value.updated_at * 1e6),
                )
            )
        return tuple(opened)

    async def listed(self, owner: str) -> list[SecretFacts]:
        """The secrets of a user by name; NotFound if there is no such user."""
        of_owner = await self._of(await self._user(owner), keys_only=False)
        return [_facts(name, SECRETS.stored(item).value) for name, item in of_owner.items()]

    async def remove(self, owner: str, name: str) -> None:
        """Remove a secret; NotFound if there is no such user or secret."""
        of_owner = await self._of(await self._user(owner))
        if name not in of_owner:
            raise _no_secret(owner, name, of_owner, attempt="nsml secret ls")
        await self._write([], [SECRETS.delete(secret_key(owner, name))])
        _log.info("secret.removed", user=owner, name=name)

    async def check(self, owner: User, uses: Iterable[SecretUse]) -> None:
        """Raise NotFound, with the nearest name, unless the owner has all of them."""
        uses = tuple(uses)
        if not uses:
            return
        of_owner = await self._of(await self._user(owner.name))
        for use in uses:
            if use.name not in of_owner:
                attempt = f"nsml secret set {use.name[:80]}"
                raise _no_secret(owner.name, use.name, of_owner, attempt=attempt)

    async def for_orders(
        self,
        orders: Orders,
        given: Container[tuple[str, int, int]] = (),
        *,
        with_logins: bool = False,
    ) -> Mapping[tuple[str, int, int], tuple[OpenedSecret | RegistryLogin, ...]]:
        """Return the secrets for a node's programs that have not started, by session, attempt, rank.

        Each session gets secrets of its own owner, with their current values; replicas in `given` get
        none. `with_logins`: also the owner's logins at registries of its image,
        which nodes with containers need.

        Raises:
            StoreError: the store does not answer.
        """
        needing = {
            key: one.session
            for one in orders.assignments
            if (key := (one.held.session_id, one.held.attempt, one.held.rank)) not in given
            and _is_to_start(one)
            and (one.session.spec.secrets or with_logins or _needs_gang_secret(one.session))
        }
        sessions = {session.id: session for session in needing.values()}
        opened = await asyncio.gather(
            *(self._opened(session, with_logins=with_logins) for session in sessions.values())
        )
        of_session = dict(zip(sessions, opened, strict=True))
        given_now = {
            key: (*of_session[session.id], *self._of_gang(session))
            for key, session in needing.items()
        }
        return {key: found for key, found in given_now.items() if found}

    def _of_gang(self, session: Session) -> tuple[OpenedSecret, ...]:
        """Return what the replicas of an attempt have in common, for their launcher alone: derived, never stored."""
        if not _needs_gang_secret(session):
            return ()
        value = self._vault.derive(f"gang\0{session.id}\0{session.attempt}")
        return (OpenedSecret(variable=GANG_SECRET, value=value),)

    async def keep_renewed(self) -> None:
        """`renew` now and at each change of the vault's keys; until cancelled."""
        while True:
            changed = asyncio.ensure_future(self._vault.changed())
            try:
                await self.renew()
                await changed
            finally:
                changed.cancel()

    async def renew(self) -> None:
        """Re-encrypt secrets under older keys with the vault's first key, so that older keys can be removed.

        Without older keys nothing is read; while the store does not answer it retries.
        """
        while self._vault.has_older_keys:
            try:
                items = (await self._store.list(SECRETS.prefix, keys_only=True)).items
                names = [item.key.removeprefix(SECRETS.prefix) for item in items]
                left = [name for name in names if not await self._renewed(name)]
            except StoreError as error:
                _log.warning("secrets.not_renewed", error=str(error))
                await self._clock.sleep(_AGAIN_S)
            else:
                _log.info("secrets.renewed", key=self._vault.key_id, count=len(names), left=left)
                return

    async def _renewed(self, key: str) -> bool:
        """Return whether it is under the first key now, or removed; False if no key decrypts it."""
        owner, _, name = key.partition("/")
        while True:
            known = await SECRETS.get(self._store, key)
            if known is None or known.value.key_id == self._vault.key_id:
                return True
            try:
                value = self._vault.open(known.value.sealed, owner=owner, name=name)
            except NotOpened:
                return False
            record = SecretRecord()
            record.CopyFrom(known.value)
            record.sealed = self._vault.seal(value, owner=owner, name=name)
            record.key_id = self._vault.key_id
            if await self._write([SECRETS.unchanged(known)], [SECRETS.put(key, record)]):
                return True

    async def _opened(
        self, session: Session, *, with_logins: bool
    ) -> tuple[OpenedSecret | RegistryLogin, ...]:
        """Return the secrets of a session, read in one step, and the logins for its image."""
        uses = session.spec.secrets
        reads = [USERS.read(session.owner), Get(key=etcd_codec.session_key(session.id))]
        reads += [SECRETS.read(secret_key(session.owner, use.name)) for use in uses]
        result = await self._store.commit(Transaction(compares=(), success=tuple(reads)))
        user, live, *found = (response.item for response in result.responses)
        # Sessions of an earlier user of that name must not get the secrets of a later one.
        is_owners = user and live and user.create_revision < live.create_revision
        since = user.create_revision if user and is_owners else None
        values = tuple(
            self._open(session.owner, use, item, since)
            for use, item in zip(uses, found, strict=True)
        )
        if not with_logins or since is None:
            return values
        logins = await self._opened_logins(session.owner, session.spec.image, since)
        return (*values, *logins)

    def _open(
        self, owner: str, use: SecretUse, item: KeyValue | None, since: int | None
    ) -> OpenedSecret:
        problem = ""
        if since is None:
            problem = f"{owner}, who submitted it, was removed, together with secret {use.name}"
        elif item is None or item.create_revision < since:
            problem = f"secret {use.name} of {owner} was removed"
        else:
            try:
                sealed = SECRETS.stored(item).value.sealed
                value = self._vault.open(sealed, owner=owner, name=use.name)
                return OpenedSecret(variable=use.variable, value=value.decode())
            except (NotOpened, UnicodeDecodeError):
                _log.error("secret.not_opened", user=owner, name=use.name)
                problem = f"secret {use.name} of {owner} cannot be opened any more: set it again"
        return OpenedSecret(variable=use.variable, problem=problem)

    async def _user(self, name: str) -> Stored[User]:
        user = await USERS.get(self._store, name) if name else None
        if user is None:
            raise NotFound(f"no user {name[:64]!r}", attempt="nsml admin user ls")
        return user

    async def _of(
        self, user: Stored[User], *, keys_only: bool = True, logins: bool = False
    ) -> dict[str, KeyValue]:
        """Return the secrets of a user by name, or the logins; not those of an earlier user of that name."""
        under = SECRETS.path(secret_key(user.value.name, ""))
        listing = await self._store.list(under, keys_only=keys_only)
        return {
            item.key.removeprefix(under): item
            for item in listing.items
            if item.create_revision > user.create_revision
            and item.key != under + _WEBHOOK
            and item.key.startswith(under + _LOGIN) == logins
        }

    async def _write(self, compares: list[Compare], operations: Sequence[Put | Delete]) -> bool:
        result = await self._store.commit(
            Transaction(compares=tuple(compares), success=tuple(operations))
        )
        return result.succeeded


def _needs_gang_secret(session: Session) -> bool:
    spec = session.spec
    return spec.launcher in _LAUNCHERS_OF_GANGS and spec.replica_count > 1


def _is_to_start(one: Assignment) -> bool:
    """Return whether its program has not been started."""
    if one.session.stop is not None:
        return False
    phases = {replica.rank: replica.phase for replica in one.session.replicas}
    return phases.get(one.held.rank, ReplicaPhase.PLACED) in _NOT_STARTED


def _check_value(
    value: bytes, *, what: str = "secret", most_bytes: int = MOST_SECRET_BYTES
) -> None:
    """Refuse values that an environment variable cannot hold; the error never includes a part of it."""
    if not value:
        raise InvalidRequest(f"a {what} has a value", why="what came was empty")
    if len(value) > most_bytes:
        raise TooLarge(f"a {what} has at most {most_bytes >> 10} KiB")
    if b"\0" in value:
        raise InvalidRequest(f"a {what} has no NUL character", why="no variable can hold it")
    try:
        value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"a {what} is text in UTF-8", attempt="base64 for bytes, and decode them in the program"
        ) from None


def _no_secret(owner: str, name: str, known: Iterable[str], *, attempt: str) -> NotFound:
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    there = nearest or [*names[:_MOST_NAMED], *more]
    return NotFound(
        f"{owner} has no secret {name[:80]!r}",
        why=f"there is {', '.join(there) or 'none yet'}",
        attempt=nearest[0] if nearest else attempt,
    )


def _events(record: SecretRecord) -> tuple[WebhookEvent, ...]:
    return tuple(map(WebhookEvent, record.events)) or EARLIER_EVENTS


def _facts(name: str, record: SecretRecord) -> SecretFacts:
    return SecretFacts(
        name=name,
        size_bytes=record.size_bytes,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )
