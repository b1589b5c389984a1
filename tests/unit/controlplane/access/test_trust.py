"""The client's half of trust, against the door's real listeners."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import grpc
import pytest

from cli.local.ports import Held
from controlplane.access.authority import SERVER_NAME, make_authority
from controlplane.access.failed_attempts import MOST_FAILURES
from controlplane.access.listeners import Address, host_for_others, names_of_this_host
from nsml.client import trust
from nsml.client.connect import connect
from nsml.client.contexts import Context
from nsml.client.errors import AlreadyExists, NotSignedIn, Unavailable
from nsml.client.trust import NodeFiles, TrustError
from nsml.common.clock import SystemClock
from nsml.v1 import accounts_pb2, accounts_pb2_grpc

from .test_tls import Live, live

__all__ = ["live"]

ASK = accounts_pb2.GetCallerRequest()


def port_of(target: str) -> int:
    return int(target.rpartition(":")[2])


async def token_of(live: Live) -> trust.JoinToken:
    return trust.parse_join_token((await live.door.joining.create_token("root")).text)


async def join(live: Live, folder: Path, token: trust.JoinToken, node: str = "gpu-1") -> str:
    return await trust.join("127.0.0.1", port_of(live.tls), token, node=node, folder=folder)


def agent_channel(live: Live, files: NodeFiles) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        files.authority.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    options = (("grpc.ssl_target_name_override", SERVER_NAME),)
    return grpc.aio.secure_channel(f"127.0.0.1:{port_of(live.agents)}", credentials, options)


def test_both_sides_agree_on_the_name_of_listeners() -> None:
    assert trust.SERVER_NAME == SERVER_NAME


async def test_the_authority_is_fetched_over_a_connection_that_proves_nothing(live: Live) -> None:
    fetched = await asyncio.to_thread(trust.fetch_authority, "127.0.0.1", port_of(live.tls))
    assert fetched.digest == live.door.authority.digest
    assert fetched.pem.split() == live.door.authority.pem.split()


async def test_a_machine_joins_and_is_then_known(live: Live, tmp_path: Path) -> None:
    address = await join(live, tmp_path, await token_of(live))
    assert address == "here:1"
    files = NodeFiles.within(tmp_path)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    async with agent_channel(live, files) as channel:
        stub = accounts_pb2_grpc.AccountServiceStub(channel)
        assert (await stub.GetCaller(ASK, timeout=60)).node == "gpu-1"


async def test_joining_can_be_repeated_but_a_name_is_taken_once(live: Live, tmp_path: Path) -> None:
    token = await token_of(live)
    await join(live, tmp_path / "a", token)
    await join(live, tmp_path / "a", token)
    with pytest.raises(AlreadyExists):
        await join(live, tmp_path / "b", token)


async def test_a_certificate_is_renewed_with_the_same_key(live: Live, tmp_path: Path) -> None:
    await join(live, tmp_path, await token_of(live))
    files = NodeFiles.within(tmp_path)
    before, key = files.certificate.read_bytes(), files.key.read_bytes()
    async with agent_channel(live, files) as channel:
        await trust.renew_certificate(channel, "gpu-1", files)
    assert files.key.read_bytes() == key
    assert files.certificate.read_bytes() != before
    async with agent_channel(live, files) as channel:
        stub = accounts_pb2_grpc.AccountServiceStub(channel)
        assert (await stub.GetCaller(ASK, timeout=60)).node == "gpu-1"
    now = SystemClock().time()
    assert not trust.needs_renewal(files.certificate, now=now)
    assert trust.needs_renewal(files.certificate, now=now + 61 * 86_400)


async def test_a_node_renews_whatever_others_guess_at_its_address(
    live: Live, tmp_path: Path
) -> None:
    token = await token_of(live)
    await join(live, tmp_path, token)
    files = NodeFiles.within(tmp_path)
    before = files.certificate.read_bytes()
    for _ in range(MOST_FAILURES):
        live.door.limiter.failed("127.0.0.1")
    with pytest.raises(NotSignedIn):
        await join(live, tmp_path / "other", token, node="gpu-2")
    async with agent_channel(live, files) as channel:
        await trust.renew_certificate(channel, "gpu-1", files)
    assert files.certificate.read_bytes() != before


async def test_a_certificate_that_has_ended_is_said_to_have(live: Live, tmp_path: Path) -> None:
    """No handshake would work: what came back of it says nothing of why."""
    await join(live, tmp_path, await token_of(live))
    files = NodeFiles.within(tmp_path)
    ended = trust.certificate_end(files.certificate)
    with pytest.raises(TrustError, match=r"the certificate of node gpu-1 ended on 20") as caught:
        await trust.renew_when_due("127.0.0.1:1", "gpu-1", files, now=ended)
    assert "nsml join HOST:PORT" in caught.value.advice
    assert "nsml admin join-token" in caught.value.advice


async def test_a_certificate_is_renewed_when_it_is_time(live: Live, tmp_path: Path) -> None:
    await join(live, tmp_path, await token_of(live))
    files = NodeFiles.within(tmp_path)
    before = files.certificate.read_bytes()
    address = f"127.0.0.1:{port_of(live.agents)}"
    now = SystemClock().time()
    assert not await trust.renew_when_due(address, "gpu-1", files, now=now)
    assert files.certificate.read_bytes() == before
    assert await trust.renew_when_due(address, "gpu-1", files, now=now + 61 * 86_400)
    assert files.certificate.read_bytes() != before


async def test_a_machine_learns_that_its_node_was_removed(live: Live, tmp_path: Path) -> None:
    await join(live, tmp_path, await token_of(live))
    files, address = NodeFiles.within(tmp_path), f"127.0.0.1:{port_of(live.agents)}"
    await trust.check_known(address, files)
    await live.door.joining.forget("gpu-1", by="kim", bars_key=False)
    with pytest.raises(NotSignedIn, match="not valid any more"):
        await trust.check_known(address, files)
    with pytest.raises(Unavailable):
        await trust.check_known("127.0.0.1:1", files)


async def test_a_server_with_another_authority_gets_no_secret(live: Live, tmp_path: Path) -> None:
    real = await token_of(live)
    token = trust.JoinToken(real.secret, make_authority(SystemClock()).digest)
    with pytest.raises(TrustError, match="not the platform") as caught:
        await join(live, tmp_path, token)
    assert caught.value.why.splitlines()[1:] == [live.door.authority.digest, token.authority_digest]
    assert not NodeFiles.within(tmp_path).key.exists()


async def test_a_wrong_secret_is_refused_and_leaves_no_certificate(
    live: Live, tmp_path: Path
) -> None:
    token = trust.JoinToken("nsml_" + "x" * 43, live.door.authority.digest)
    with pytest.raises(NotSignedIn):
        await join(live, tmp_path, token)
    assert not NodeFiles.within(tmp_path).certificate.exists()


async def test_plaintext_and_silence_are_told_apart(live: Live) -> None:
    with pytest.raises(TrustError, match="does not speak TLS"):
        await asyncio.to_thread(trust.fetch_authority, "127.0.0.1", port_of(live.plain))
    with Held() as held, pytest.raises(Unavailable):
        trust.fetch_authority("127.0.0.1", held.free())


@pytest.mark.parametrize(
    "text",
    ["", "x", "nsml_" + "a" * 43, "nsml_" + "a" * 43 + ".xyz", "a." + "0" * 64, "é." + "0" * 64],
)
def test_malformed_join_tokens_are_refused(text: str) -> None:
    with pytest.raises(TrustError, match="not a join token"):
        trust.parse_join_token(text)


def test_an_address_may_carry_the_digest_of_its_authority() -> None:
    digest = make_authority(SystemClock()).digest
    assert trust.parse_pinned_server(f"gpu.lab:1#{digest.upper()}") == ("gpu.lab:1", digest)
    assert trust.parse_pinned_server("[::1]:1") == ("[::1]:1", "")
    for text in ("gpu.lab#", "gpu.lab#xyz", f"gpu.lab#{digest}0", f"gpu.lab#{digest[1:]}"):
        with pytest.raises(TrustError, match="not the digest"):
            trust.parse_pinned_server(text)


def test_the_digest_of_a_certificate_is_that_of_its_authority() -> None:
    authority = make_authority(SystemClock())
    assert trust.digest_of(authority.pem.decode()) == authority.digest
    with pytest.raises(TrustError, match="not a certificate"):
        trust.digest_of("nothing")


async def test_a_pinned_platform_is_itself_under_any_name(live: Live, tmp_path: Path) -> None:
    """The listener's certificate does not bear 127.0.0.1."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(live.door.authority.pem)
    server = f"127.0.0.1:{port_of(live.tls)}"
    pinned = Context(name="a", server=server, ca=str(ca), server_name=trust.SERVER_NAME)
    async with connect(pinned) as client:
        with pytest.raises(NotSignedIn):
            await client.accounts.caller()
    async with connect(pinned._replace(server_name=""), deadline_s=5) as client:
        with pytest.raises(Unavailable):
            await client.accounts.caller()


async def test_no_public_authority_vouches_for_a_platform(live: Live) -> None:
    port = port_of(live.tls)
    assert not await asyncio.to_thread(trust.is_publicly_trusted, "127.0.0.1", port)


def test_the_secret_of_a_join_token_never_shows() -> None:
    text = "nsml_" + "a" * 43
    token = trust.parse_join_token(f" {text}.{'0' * 64}\n")
    assert token.secret == text
    assert text not in repr(token)


@pytest.mark.parametrize(
    ("listens_on", "names", "reached_as"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", ["gpu.lab", "gpu"], "gpu.lab"),
        ("0.0.0.0", ["gpu.lab"], "gpu.lab"),
    ],
)
def test_where_others_reach_a_listener(listens_on: str, names: list[str], reached_as: str) -> None:
    assert host_for_others(Address(host=listens_on, port=1), names) == reached_as


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_a_listener_on_all_addresses_is_reached_under_one_of_this_host(everywhere: str) -> None:
    found = host_for_others(Address(host=everywhere, port=1))
    assert found in names_of_this_host()
    assert found != "localhost"


def test_names_of_this_host_include_its_addresses() -> None:
    names = names_of_this_host(["example.org", "0.0.0.0"])
    assert names[0] == "example.org"
    assert {"localhost", "127.0.0.1", socket.gethostname()} <= set(names)
    assert "0.0.0.0" not in names
