from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import grpc
import grpc.aio
import pytest

from controlplane.store.etcd import EtcdStore
from controlplane.store.etcd_members import (
    NO_LEADER,
    Cluster,
    LeaseNotFound,
    Member,
    ReplyTooLarge,
    StoreBehind,
    _verdict,
    plain_or_tls,
    refuse_unsound,
)
from controlplane.store.interface import (
    Compacted,
    InvalidTransaction,
    NoSpace,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
)
from controlplane.store.open import endpoints_of


@pytest.mark.parametrize(
    ("obstacles", "away"),
    [
        (("", "refused", ""), {"b": "refused"}),
        (("", NO_LEADER, ""), {"b": NO_LEADER}),  # the others have cut it off
        ((NO_LEADER, "refused", "refused"), {"b": "refused", "c": "refused"}),
    ],
)
async def test_a_member_that_waits_for_the_others_is_not_away(
    obstacles: tuple[str, ...], away: dict[str, str]
) -> None:
    members = [
        SimpleNamespace(endpoint=endpoint, obstacle=AsyncMock(return_value=obstacle))
        for endpoint, obstacle in zip("abc", obstacles, strict=True)
    ]
    store: Any = SimpleNamespace(_cluster=SimpleNamespace(members=members))
    assert await EtcdStore.members_away(store) == away


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.4", "3.3.27", "2.3.8", "", "dev"])
def test_servers_that_lose_writes_are_refused_with_a_reason(version: str) -> None:
    with pytest.raises(StoreRefused, match="etcd"):
        refuse_unsound(version)


@pytest.mark.parametrize("version", ["3.4.21", "3.4.23", "3.5.5", "3.5.21", "3.6.0", "4.0.0"])
def test_sound_servers_are_taken(version: str) -> None:
    refuse_unsound(version)


@pytest.mark.parametrize(
    ("endpoint", "target", "is_encrypted"),
    [
        ("https://etcd.example:2379", "etcd.example:2379", True),
        ("http://127.0.0.1:2379", "127.0.0.1:2379", False),
        ("http://[::1]:2379", "[::1]:2379", False),
        ("http://localhost:2379", "localhost:2379", False),
        ("unix:///run/etcd/localhost:1", "unix:/run/etcd/localhost:1", False),
    ],
)
def test_endpoints(endpoint: str, target: str, is_encrypted: bool) -> None:
    assert plain_or_tls(endpoint) == (target, is_encrypted)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://10.0.0.1:2379",
        "http://127.evil.example:2379",
        "etcd:2379",
        "https://etcd",
        "unix://",
    ],
)
def test_plain_text_to_others_and_what_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"etcd endpoint|https"):
        plain_or_tls(endpoint)


async def test_encryption_without_an_authority_is_refused() -> None:
    with pytest.raises(ValueError, match="certificate authority"):
        Member("https://127.0.0.1:2379", None)


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")


@pytest.mark.parametrize(
    ("code", "details", "after_read", "after_write"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses", "retry", "retry"),
        ("UNAVAILABLE", "Socket closed", "retry", "unknown"),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", "retry", "unknown"),
        ("UNAVAILABLE", "etcdserver: request timed out", "retry", "unknown"),
        ("UNAVAILABLE", "etcdserver: no leader", "retry", "retry"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "retry", "unknown"),
        ("INTERNAL", "anything", "retry", "unknown"),
        ("UNKNOWN", "context canceled", "retry", "unknown"),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", "retry", "retry"),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", "login", "login"),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", "login", "login"),
    ],
)
def test_what_follows_a_failure(code: str, details: str, after_read: str, after_write: str) -> None:
    error = failed(grpc.StatusCode[code], details)
    assert _verdict(error, is_sent=False) == after_read
    assert _verdict(error, is_sent=True) == after_write


@pytest.mark.parametrize(
    ("code", "details", "meaning"),
    [
        ("NOT_FOUND", "etcdserver: requested lease not found", LeaseNotFound),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Compacted),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", StoreReplaced),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", NoSpace),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (9 vs. 8)", ReplyTooLarge),
        ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", InvalidTransaction),
        ("PERMISSION_DENIED", "etcdserver: permission denied", StoreRefused),
        ("UNIMPLEMENTED", "unknown service", StoreRefused),
    ],
)
def test_answers_that_are_final(code: str, details: str, meaning: type[Exception]) -> None:
    for is_sent in (False, True):
        with pytest.raises(meaning):
            _verdict(failed(grpc.StatusCode[code], details), is_sent=is_sent)


def test_what_names_an_etcd_and_what_a_file(tmp_path) -> None:
    assert endpoints_of("https://a:1, https://b:1") == ("https://a:1", "https://b:1")
    assert endpoints_of(["https://a:1"]) == ("https://a:1",)
    assert endpoints_of(":memory:") == ()
    assert endpoints_of(str(tmp_path / "store.db")) == ()
    assert endpoints_of(tmp_path / "store.db") == ()


class Stepping:
    """A clock that moves when it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("answered_at_s", "meaning"), [(9.9, StoreReplaced), (5.0, StoreUnavailable)]
)
async def test_a_last_try_without_time_does_not_hide_what_all_others_said(
    monkeypatch: pytest.MonkeyPatch, answered_at_s: float, meaning: type[Exception]
) -> None:
    """Reads that were answered from the past, then one that times out: cut short by our own end, or in full."""
    clock = Stepping()
    cluster = Cluster(["http://127.0.0.1:1"], clock=clock, tls=None, login=None, deadline_s=10, try_s=1)  # fmt: skip

    async def ready(member: Member, timeout_s: float, *, is_alone: bool = True) -> None:
        del member, timeout_s, is_alone

    monkeypatch.setattr(Member, "ready", ready)

    async def attempt(member: Member, timeout_s: float) -> None:
        del member
        if clock.now < answered_at_s:
            clock.now = answered_at_s
            raise StoreBehind("etcd is at revision 2")
        clock.now += timeout_s
        raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    try:
        with pytest.raises(meaning):
            await cluster.call(attempt)
    finally:
        await cluster.close()
