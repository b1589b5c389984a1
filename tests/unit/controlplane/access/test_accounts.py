"""Users and tokens: what is kept, what is refused, what survives races."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from controlplane.access.accounts import (
    DAY_S,
    LONGEST_TOKEN_LIFE_S,
    MOST_TOKENS,
    NAME_RESTS_S,
    Accounts,
)
from controlplane.access.bootstrap import ensure_admin_file, ensure_node_file
from controlplane.access.failed_attempts import MOST_ADDRESSES, FailureLimiter, address_of
from controlplane.access.files import write_private
from controlplane.access.identities import Identities
from controlplane.access.records import REMOVED_USERS, USERS
from controlplane.access.secret import parse_secret
from controlplane.access.vault import make_vault
from controlplane.domain.errors import (
    AlreadyExists,
    InvalidRequest,
    LastAdministrator,
    NameReserved,
    NotFound,
    NotSignedIn,
    StateConflict,
    TooLarge,
)
from controlplane.domain.identity import AnonymousCaller, NodeCaller, Role, UserCaller
from controlplane.secrets.user_secrets import MOST_SECRETS, UserSecrets
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import DeletePrefix, Listing, Put, Transaction
from controlplane.stored.v1.records_pb2 import UserRecord
from nsml.common.clock import in_thread

from .conftest import Door, HandClock
from .test_tls import make_request


async def dump(door: Door) -> bytes:
    listing = await door.store.list("")
    return b"\n".join(item.key.encode() + b"=" + item.value for item in listing.items)


async def test_a_copy_of_the_store_holds_no_usable_token(door: Door) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    user = await door.accounts.create_token("kim")
    node = await door.accounts.create_node_token("gpu-1")
    join = await door.joining.create_token("kim")
    stolen = await dump(door)
    for text in (user.secret.text, node.secret.text, join.text.partition(".")[0]):
        assert text.encode() not in stolen
        assert text.removeprefix("nsml_").encode() not in stolen
    # what is kept is not accepted as a token either
    for text in (user.secret.fingerprint, "nsml_" + user.secret.fingerprint):
        secret = parse_secret(text)
        assert secret is None or await door.identities.of_secret(secret, thorough=True) is None


async def test_secrets_show_neither_in_logs_nor_in_a_repr(door: Door) -> None:
    with structlog.testing.capture_logs() as lines:
        await door.accounts.create_user("kim", Role.MEMBER, "")
        token = await door.accounts.create_token("kim")
        join = await door.joining.create_token("kim")
        await door.accounts.revoke_all("kim")
    said = repr(lines) + repr(token) + repr(token.secret)
    assert token.secret.text not in said
    assert join.text.partition(".")[0] not in said
    assert token.secret.fingerprint[:8] in said
    assert token.secret.fingerprint not in said


async def test_secrets_are_long_and_never_the_same(door: Door) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    texts = {(await door.accounts.create_token("kim")).secret.text for _ in range(20)}
    assert len(texts) == 20
    assert all(text.startswith("nsml_") and len(text) == 48 for text in texts)


@pytest.mark.parametrize("name", ["", "Kim", "1kim", "a" * 33, "kim/../root", "kim\n", "-x", "k m"])
async def test_malformed_names_are_refused(door: Door, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await door.accounts.create_user(name, Role.MEMBER, "")
    assert await door.accounts.list_users() == []


async def test_a_user_is_made_once(door: Door) -> None:
    outcomes = await asyncio.gather(
        *(door.accounts.create_user("kim", Role.MEMBER, f"team{i}") for i in range(5)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 4


async def test_the_last_administrator_stays(door: Door) -> None:
    await door.accounts.create_user("root", Role.ADMIN, "")
    await door.accounts.create_user("kim", Role.MEMBER, "")
    with pytest.raises(LastAdministrator):
        await door.accounts.delete_user("root")
    await door.accounts.create_user("boss", Role.ADMIN, "")
    await door.accounts.delete_user("root")
    with pytest.raises(LastAdministrator):
        await door.accounts.delete_user("boss")


async def test_two_administrators_cannot_remove_one_another(door: Door) -> None:
    for _ in range(10):
        await door.accounts.create_user("one", Role.ADMIN, "")
        await door.accounts.create_user("two", Role.ADMIN, "")
        outcomes = await asyncio.gather(
            door.accounts.delete_user("one"),
            door.accounts.delete_user("two"),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, LastAdministrator) for outcome in outcomes) == 1
        assert len(await door.accounts.list_users()) == 1
        for table in (USERS, REMOVED_USERS):
            await door.store.commit(Transaction(success=(DeletePrefix(prefix=table.prefix),)))


async def test_tokens_end_with_their_user(door: Door) -> None:
    await door.accounts.create_user("root", Role.ADMIN, "")
    await door.accounts.create_user("kim", Role.MEMBER, "")
    token = await door.accounts.create_token("kim")
    await door.accounts.delete_user("kim")
    assert await door.identities.of_secret(token.secret, thorough=True) is None
    assert b"access/token/" not in await dump(door)
    with pytest.raises(NotFound):
        await door.accounts.create_token("kim")


async def test_lives_of_tokens_are_bounded(door: Door) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    for life_s in (-1.0, LONGEST_TOKEN_LIFE_S + 1, float("inf"), float("nan")):
        with pytest.raises(InvalidRequest):
            await door.accounts.create_token("kim", life_s)
    token = await door.accounts.create_token("kim")
    assert token.expires_at == door.clock.now + 30 * DAY_S


async def test_tokens_of_a_user_are_bounded_and_expired_ones_make_room(door: Door) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    for _ in range(MOST_TOKENS):
        await door.accounts.create_token("kim", DAY_S)
    with pytest.raises(StateConflict):
        await door.accounts.create_token("kim")
    door.clock.advance(DAY_S)
    await door.accounts.create_token("kim")
    assert (await dump(door)).count(b"access/token/") == 1


async def test_tokens_that_are_asked_for_at_once_are_bounded_too(
    clock: HandClock, tmp_path: Path
) -> None:
    async with EmbeddedStore(tmp_path / "store.db", clock=clock, run=in_thread) as store:
        identities = Identities(store, clock)
        following = asyncio.create_task(identities.run())
        accounts = Accounts(store, identities, clock=clock, random_bytes=secrets.token_bytes)
        await accounts.create_user("kim", Role.MEMBER, "")
        asked = [accounts.create_token("kim") for _ in range(2 * MOST_TOKENS)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        following.cancel()
        await asyncio.wait([following])
    assert sum(isinstance(outcome, StateConflict) for outcome in outcomes) == MOST_TOKENS


class Slow:
    """The store of one control plane; another one is faster once, after something was counted."""

    def __init__(self, store: EmbeddedStore, other: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._other: Callable[[], Awaitable[object]] | None = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, prefix: str, **how: Any) -> Listing:
        counted = await self._store.list(prefix, **how)
        other, self._other = self._other, None
        if other is not None:
            await other()
        return counted


@pytest.mark.parametrize(("before", "is_made"), [(MOST_TOKENS - 1, False), (0, True)])
async def test_tokens_are_bounded_over_all_control_planes(
    door: Door, before: int, is_made: bool
) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    for _ in range(before):
        await door.accounts.create_token("kim", DAY_S)
    slow: Any = Slow(door.store, lambda: door.accounts.create_token("kim", DAY_S))
    other = Accounts(slow, door.identities, clock=door.clock, random_bytes=secrets.token_bytes)
    with contextlib.nullcontext() if is_made else pytest.raises(StateConflict):
        await other.create_token("kim", DAY_S)
    assert (await dump(door)).count(b"access/token/") == before + 1 + is_made


@pytest.mark.parametrize(("before", "is_made"), [(MOST_SECRETS - 1, False), (0, True)])
async def test_secrets_are_bounded_over_all_control_planes(
    door: Door, before: int, is_made: bool
) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    vault = make_vault(secrets.token_bytes)
    one = UserSecrets(door.store, vault, clock=door.clock)
    for number in range(before):
        await one.put("kim", f"A{number}", b"x")
    slow: Any = Slow(door.store, lambda: one.put("kim", "B", b"x"))
    other = UserSecrets(slow, vault, clock=door.clock)
    with contextlib.nullcontext() if is_made else pytest.raises(TooLarge):
        await other.put("kim", "C", b"x")
    assert len(await one.listed("kim")) == before + 1 + is_made


async def test_first_start_makes_an_administrator_once(door: Door, tmp_path: Path) -> None:
    path = await ensure_admin_file(tmp_path, door.accounts, door.identities, "kim")
    text = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = parse_secret(text)
    assert secret is not None
    who = await door.identities.of_secret(secret, thorough=True)
    assert isinstance(who, UserCaller)
    assert (who.user.name, who.user.role) == ("kim", Role.ADMIN)
    await ensure_admin_file(tmp_path, door.accounts, door.identities, "lee")
    assert path.read_text().strip() == text
    assert [user.name for user in await door.accounts.list_users()] == ["kim"]


@pytest.mark.parametrize("harm", ["lost", "expired", "revoked", "readable", "garbage"])
async def test_a_useless_token_file_is_written_anew(door: Door, tmp_path: Path, harm: str) -> None:
    path = await ensure_admin_file(tmp_path, door.accounts, door.identities, "kim")
    before = path.read_text()
    match harm:
        case "lost":
            path.unlink()
        case "expired":
            door.clock.advance(400 * DAY_S)
        case "revoked":
            await door.accounts.revoke_all("kim")
        case "readable":
            path.chmod(0o644)
        case "garbage":
            path.write_bytes(b"\xff\xfe")
    await ensure_admin_file(tmp_path, door.accounts, door.identities, "lee")
    assert path.read_text() != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = parse_secret(path.read_text().strip())
    assert secret is not None
    who = await door.identities.of_secret(secret, thorough=True)
    assert isinstance(who, UserCaller)
    assert who.user.name == "kim"


@pytest.mark.parametrize("ensure", [ensure_admin_file, ensure_node_file])
async def test_a_token_that_others_could_read_is_good_no_longer(
    door: Door, tmp_path: Path, ensure: Callable[..., Awaitable[Path]]
) -> None:
    path = await ensure(tmp_path, door.accounts, door.identities, "kim")
    seen = parse_secret(path.read_text().strip())
    assert seen is not None
    assert await door.identities.of_secret(seen, thorough=True) is not None
    path.chmod(0o644)
    await ensure(tmp_path, door.accounts, door.identities, "kim")
    assert await door.identities.of_secret(seen, thorough=True) is None
    fresh = parse_secret(path.read_text().strip())
    assert fresh is not None
    assert await door.identities.of_secret(fresh, thorough=True) is not None


def test_a_private_file_is_flushed_before_its_name_and_its_name_before_it_counts(
    tmp_path: Path, flushes: Callable[[Path], list[tuple[int, bool]]]
) -> None:
    path = tmp_path / "ca.key"
    flushed = flushes(path)
    write_private(path, b"secret")
    assert flushed == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


async def test_the_local_agent_gets_a_token_for_its_node_alone(door: Door, tmp_path: Path) -> None:
    path = await ensure_node_file(tmp_path, door.accounts, door.identities, "gpu-1")
    first = path.read_text()
    secret = parse_secret(first.strip())
    assert secret is not None
    who = await door.identities.of_secret(secret, thorough=True)
    assert isinstance(who, NodeCaller)
    assert who.node == "gpu-1"
    assert (await ensure_node_file(tmp_path, door.accounts, door.identities, "gpu-1")) == path
    assert path.read_text() == first
    await ensure_node_file(tmp_path, door.accounts, door.identities, "gpu-2")
    assert path.read_text() != first


@given(st.lists(st.integers(0, 3 * MOST_ADDRESSES), max_size=200))
def test_the_limiter_is_bounded_and_forgets_nobody_early(failures: list[int]) -> None:
    clock = HandClock()
    limiter = FailureLimiter(clock)
    for address in failures:
        limiter.failed(f"ipv4:{address}")
    for address in set(failures):
        assert limiter.is_limited(f"ipv4:{address}") == (failures.count(address) >= 10)
    clock.advance(61)
    assert not any(limiter.is_limited(f"ipv4:{address}") for address in failures)


def test_the_limiter_keeps_a_bounded_number_of_addresses() -> None:
    limiter = FailureLimiter(HandClock())
    for address in range(3 * MOST_ADDRESSES):
        limiter.failed(f"ipv4:{address}")
    assert len(limiter._failures) == MOST_ADDRESSES


def test_the_address_of_a_peer_has_no_port() -> None:
    assert address_of("ipv4:10.0.0.7:4711") == "10.0.0.7"
    assert address_of("ipv6:%5B2001:db8:0:7::1%5D:4711") == "2001:db8:0:7::/64"
    assert address_of("ipv6:[2001:db8:0:7:ff::9]:4712") == "2001:db8:0:7::/64"
    assert address_of("ipv6:%5B::ffff:10.0.0.7%5D:4711") == "10.0.0.7"
    assert address_of("ipv6:%5Bfe80::1%25eth0%5D:4711") == "fe80::/64"
    assert address_of("unix:") == "unix"


@pytest.mark.parametrize("step_s", [1.0, 0.0, -60.0])
async def test_a_token_does_not_come_back_to_life_with_a_new_user_of_that_name(
    door: Door, step_s: float
) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    token = await door.accounts.create_token("kim")
    # As a crash leaves it in the middle of a removal.
    await door.store.commit(Transaction(success=(USERS.delete("kim"),)))
    door.clock.now += step_s
    await door.accounts.create_user("kim", Role.MEMBER, "")
    assert await door.identities.of_secret(token.secret, thorough=True) is None
    fresh = await door.accounts.create_token("kim")
    assert await door.identities.of_secret(fresh.secret, thorough=True) is not None


async def test_a_token_is_good_whose_maker_has_a_slower_clock_than_the_users(door: Door) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    door.clock.now -= 60
    token = await door.accounts.create_token("kim")
    who = await door.identities.of_secret(token.secret, thorough=True)
    assert isinstance(who, UserCaller)
    assert who.user.name == "kim"


async def test_ids_are_never_used_again(door: Door) -> None:
    ids = {(await door.accounts.create_user("kim", Role.MEMBER, "")).id}
    for _ in range(3):
        await door.accounts.delete_user("kim")
        with pytest.raises(NameReserved):
            await door.accounts.create_user("kim", Role.MEMBER, "")
        door.clock.advance(NAME_RESTS_S)
        ids.add((await door.accounts.create_user("kim", Role.MEMBER, "")).id)
    assert len(ids) == 4
    assert "kim" not in ids
    await door.accounts.delete_user("kim")
    restored = await door.accounts.create_user("kim", Role.MEMBER, "", restore=True)
    assert restored.id in ids
    with pytest.raises(NotFound):
        await door.accounts.create_user("lee", Role.MEMBER, "", restore=True)
    with pytest.raises(AlreadyExists):
        await door.accounts.create_user("kim", Role.MEMBER, "", restore=True)


async def test_a_record_of_the_version_before_has_the_name_as_its_id(door: Door) -> None:
    record = UserRecord(name="kim", role="MEMBER")
    key = USERS.path("kim")
    await door.store.commit(Transaction(success=(Put(key=key, value=record.SerializeToString()),)))
    assert (await door.accounts.get_user("kim")).id == "kim"
    await door.accounts.delete_user("kim")
    again = await door.accounts.create_user("kim", Role.MEMBER, "", restore=True)
    assert again.id == "kim"


async def test_join_tokens_of_a_removed_administrator_are_void(door: Door) -> None:
    for name in ("one", "two"):
        await door.accounts.create_user(name, Role.ADMIN, "")
    tokens = {name: (await door.joining.create_token(name)).text for name in ("one", "two")}
    await door.accounts.delete_user("one")
    request, _ = make_request()
    for name, text in tokens.items():
        secret = text.partition(".")[0]
        asked = door.joining.join(
            AnonymousCaller(), secret=secret, node="gpu-1", signing_request=request
        )
        with pytest.raises(NotSignedIn) if name == "one" else contextlib.nullcontext():
            await asked


async def test_the_first_administrator_is_made_whatever_is_left_of_the_name(
    door: Door, tmp_path: Path
) -> None:
    async def owned(_: str) -> list[str]:
        return ["1 ended session"]

    door.accounts._owned = owned
    await ensure_admin_file(tmp_path, door.accounts, door.identities, "kim")
    assert [user.name for user in await door.accounts.list_users()] == ["kim"]
