"""Users, tokens and nodes' keys as the store keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from controlplane.domain.identity import Role, User
from controlplane.store.tables import Table
from controlplane.stored.v1.records_pb2 import (
    JoinTokenRecord,
    SecretRecord,
    TokenRecord,
    UserRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.store.interface import Put
    from controlplane.store.tables import Stored

RecordT = TypeVar("RecordT", UserRecord, TokenRecord, JoinTokenRecord, SecretRecord)


def _encode(record: UserRecord | TokenRecord | JoinTokenRecord | SecretRecord) -> bytes:
    return record.SerializeToString(deterministic=True)


def _decoder(kind: type[RecordT]) -> Callable[[bytes], RecordT]:
    def decode(value: bytes) -> RecordT:
        try:
            return kind.FromString(value)
        except DecodeError as error:
            raise ValueError(str(error)) from error

    return decode


_user_of = _decoder(UserRecord)


def _encode_user(user: User) -> bytes:
    role = user.role.value
    return _encode(
        UserRecord(name=user.name, role=role, team=user.team, created_at=user.created_at)
    )


def _decode_user(value: bytes) -> User:
    record = _user_of(value)
    return User(
        name=record.name, role=Role(record.role), team=record.team, created_at=record.created_at
    )


PREFIX: Final = "access/"
"""Of who may call, so that one watch follows these records and nothing else."""

USERS: Final = Table[User](f"{PREFIX}user/", encode=_encode_user, decode=_decode_user)
"""By name."""


def touched(user: Stored[User]) -> Put:
    """The user's record as it is, written again, beside a compare that it is unchanged.

    Whoever makes something that a user may have so many of writes this: of two control planes that
    both found room for one more, the later one is refused, and counts again.
    """
    return USERS.put(user.key, user.value)


TOKENS: Final = Table[TokenRecord](f"{PREFIX}token/", encode=_encode, decode=_decoder(TokenRecord))
"""By fingerprint of the secret."""

JOIN_TOKENS: Final = Table[JoinTokenRecord](
    f"{PREFIX}join/", encode=_encode, decode=_decoder(JoinTokenRecord)
)
"""By fingerprint of the secret."""

BY_TOKEN: Final = "token"  # noqa: S105 - it says that there is one
"""In place of a key's fingerprint: the node is this machine's, whose agent has a token."""

JOINED: Final = Table[str](f"{PREFIX}joined/", encode=str.encode, decode=bytes.decode)
"""By name of the node: the fingerprint of its public key. A certificate for any other key of that
node is not valid."""


def _decode_secret(value: bytes) -> SecretRecord:
    """A record that is damaged is one that opens for nobody: it can be set again, or removed."""
    try:
        return SecretRecord.FromString(value)
    except DecodeError:
        return SecretRecord()


SECRETS: Final = Table[SecretRecord]("secret/", encode=_encode, decode=_decode_secret)
"""By owner and name, `secret_key`; not under `PREFIX`, since nobody follows them."""


def secret_key(owner: str, name: str) -> str:
    """Where a user's secret is in `SECRETS`."""
    return f"{owner}/{name}"
