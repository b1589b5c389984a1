"""Stored records of users, tokens and nodes' keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from controlplane.access.secret import new_id
from controlplane.codec import Spread, codec
from controlplane.domain.identity import User
from controlplane.store.tables import Table
from controlplane.stored.v1.records_pb2 import (
    BarredKeyRecord,
    JoinTokenRecord,
    SecretRecord,
    SshKeyRecord,
    TokenRecord,
    UserRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.access.secret import RandomBytes
    from controlplane.store.interface import Put
    from controlplane.store.tables import Stored
    from nsml.common.clock import Clock

AccessRecord = (
    UserRecord | TokenRecord | JoinTokenRecord | SecretRecord | SshKeyRecord | BarredKeyRecord
)
RecordT = TypeVar(
    "RecordT", UserRecord, TokenRecord, JoinTokenRecord, SecretRecord, SshKeyRecord, BarredKeyRecord
)


def _encode(record: AccessRecord) -> bytes:
    return record.SerializeToString(deterministic=True)


def _decoder(kind: type[RecordT]) -> Callable[[bytes], RecordT]:
    def decode(value: bytes) -> RecordT:
        try:
            return kind.FromString(value)
        except DecodeError as error:
            raise ValueError(str(error)) from error

    return decode


def _set_id(user: User, record: UserRecord) -> None:
    # "" stands for the name, as in records of versions without ids.
    record.id = "" if user.id == user.name else user.id


_USER: Final = codec(
    User,
    UserRecord,
    spread={"id": Spread(("id",), _set_id, lambda record: record.id)},
    extra=("removed_at",),
)

PREFIX: Final = "access/"
"""Prefix of all records of possible callers, so that one watch follows just these."""

USERS: Final = Table[User](f"{PREFIX}user/", encode=_USER.encode, decode=_USER.decode)
"""By name."""


class Removed(NamedTuple):
    """A removed user's last record, and the time of the removal (Unix seconds)."""

    user: User
    removed_at: float


def _encode_removed(removed: Removed) -> bytes:
    record = _USER.to_message(removed.user)
    record.removed_at = removed.removed_at
    return _encode(record)


def _decode_removed(value: bytes) -> Removed:
    return Removed(_USER.decode(value), UserRecord.FromString(value).removed_at)


REMOVED_USERS: Final = Table[Removed](
    "removed-user/", encode=_encode_removed, decode=_decode_removed
)
"""By name; not under `PREFIX`, since they are not watched."""


def touched(user: Stored[User]) -> Put:
    """Return a write of a user's unchanged record; use it with a compare that it is unchanged.

    Creators of things with a limit per user write this: if two control planes both find room for one
    more, the later transaction fails, and counts again.
    """
    return USERS.put(user.key, user.value)


TOKENS: Final = Table[TokenRecord](f"{PREFIX}token/", encode=_encode, decode=_decoder(TokenRecord))
"""By fingerprint of the secret."""

JOIN_TOKENS: Final = Table[JoinTokenRecord](
    f"{PREFIX}join/", encode=_encode, decode=_decoder(JoinTokenRecord)
)
"""By fingerprint of the secret."""


SSH_KEYS: Final = Table[SshKeyRecord](
    f"{PREFIX}ssh-key/", encode=_encode, decode=_decoder(SshKeyRecord)
)
"""Users' public keys, by fingerprint: so a key belongs to one user."""


class Joined(NamedTuple):
    """Identity of a node.

    Attributes:
        has_token: the node is a control plane's own machine, whose agent gets a token: a machine
            with a join token cannot take its name, and the token's holder may have another key signed.
        key: fingerprint of its public key: certificates for other keys are invalid. Empty: all are.
        id: of this join, never reused; empty: the node's name.
        joined_at: time of the join, Unix seconds; 0: unknown.
        ends_at: expiry of its newest certificate, Unix seconds; 0: unknown.
    """

    has_token: bool = False
    key: str = ""
    id: str = ""
    joined_at: float = 0.0
    ends_at: float = 0.0


def joined_now(clock: Clock, random_bytes: RandomBytes) -> Joined:
    """Create the record of a node with an unused name, without its key."""
    return Joined(id=new_id("n", random_bytes), joined_at=clock.time())


_TOKEN = "token"  # noqa: S105 - it says that there is one
_ID = "id="
_AT = "at="
_UNTIL = "until="


def _encode_joined(joined: Joined) -> bytes:
    words = (
        _TOKEN if joined.has_token else "",
        joined.key,
        f"{_ID}{joined.id}" if joined.id else "",
        f"{_AT}{joined.joined_at!r}" if joined.joined_at else "",
        f"{_UNTIL}{joined.ends_at!r}" if joined.ends_at else "",
    )
    return " ".join(filter(None, words)).encode()


def _decode_joined(value: bytes) -> Joined:
    joined = Joined()
    for word in value.decode().split():
        if word == _TOKEN:
            joined = joined._replace(has_token=True)
        elif word.startswith(_ID):
            joined = joined._replace(id=word.removeprefix(_ID))
        elif word.startswith(_AT):
            joined = joined._replace(joined_at=float(word.removeprefix(_AT)))
        elif word.startswith(_UNTIL):
            joined = joined._replace(ends_at=float(word.removeprefix(_UNTIL)))
        else:
            joined = joined._replace(key=word)
    return joined


JOINED: Final = Table[Joined](f"{PREFIX}joined/", encode=_encode_joined, decode=_decode_joined)
"""By name of the node."""

BARRED: Final = Table[BarredKeyRecord](
    "barred-key/", encode=_encode, decode=_decoder(BarredKeyRecord)
)
"""Revoked keys of machines, by fingerprint; not under `PREFIX`, since they are not watched."""


def _decode_secret(value: bytes) -> SecretRecord:
    """Decode a record; a damaged one becomes empty: it opens for no user, but can be set again, or removed."""
    try:
        return SecretRecord.FromString(value)
    except DecodeError:
        return SecretRecord()


SECRETS: Final = Table[SecretRecord]("secret/", encode=_encode, decode=_decode_secret)
"""By owner and name, `secret_key`; not under `PREFIX`, since they are not watched."""


def secret_key(owner: str, name: str) -> str:
    """Return the key of a user's secret in `SECRETS`."""
    return f"{owner}/{name}"
