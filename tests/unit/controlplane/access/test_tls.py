"""Joining and TLS against real listeners."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from controlplane.access.access_table import TABLE
from controlplane.access.authority import (
    CERTIFICATE_LIFE,
    SERVER_NAME,
    Authority,
    make_authority,
    open_authority,
)
from controlplane.access.current import require_node
from controlplane.access.interceptor import AccessInterceptor
from controlplane.access.listeners import (
    Identity,
    ListenRefused,
    listen_agents,
    listen_plain,
    listen_tls,
    parse_address,
)
from controlplane.access.records import JOINED, Joined
from controlplane.accounts.service import AccountServicer, Platform
from controlplane.domain.errors import AlreadyExists, Denied, InvalidRequest, NotSignedIn
from controlplane.domain.identity import (
    AnonymousCaller,
    NodeCaller,
    Role,
    User,
    UserCaller,
    identity_of,
)
from controlplane.projects.projects import Projects
from controlplane.state.live_state import LiveState
from controlplane.store.interface import Transaction
from controlplane.wire.errors import refuse
from nsml.common.clock import SystemClock
from nsml.v1 import accounts_pb2, accounts_pb2_grpc

from .conftest import Door, HandClock, open_door

NOBODY = AnonymousCaller()


def make_request(
    node: str = "whatever", key: ec.EllipticCurvePrivateKey | None = None
) -> tuple[bytes, bytes]:
    """A signing request and its key, PEM."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.mark.parametrize("issued_s", [-7200, 7200])
@pytest.mark.parametrize("checked_s", [-7200, 7200])
def test_a_clock_that_is_hours_off_refuses_no_certificate(
    clock: HandClock, issued_s: int, checked_s: int
) -> None:
    authority, now = make_authority(clock), clock.now
    clock.now = now + issued_s
    chain = x509.load_pem_x509_certificates(authority.issue_server(["a.example"]).chain)
    checked = dt.datetime.fromtimestamp(now + checked_s, dt.UTC)
    assert len(chain) == 2
    assert all(one.not_valid_before_utc < checked < one.not_valid_after_utc for one in chain)


class Live:
    """A server with a listener of each kind."""

    def __init__(self, door: Door, plain: str, tls: str, agents: str) -> None:
        self.door, self.plain, self.tls, self.agents = door, plain, tls, agents

    def secure(
        self,
        target: str,
        *,
        authority: Authority | None = None,
        cert: bytes = b"",
        key: bytes = b"",
    ) -> accounts_pb2_grpc.AccountServiceAsyncStub:
        roots = (authority or self.door.authority).pem
        credentials = grpc.ssl_channel_credentials(roots, key or None, cert or None)
        options = (("grpc.enable_retries", 0),)
        return accounts_pb2_grpc.AccountServiceStub(
            grpc.aio.secure_channel(target, credentials, options)
        )


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    clock = SystemClock()
    async with open_door(clock) as door, contextlib.AsyncExitStack() as stack:
        interceptor = AccessInterceptor(door.identities, TABLE, limiter=door.limiter, refuse=refuse)
        server = grpc.aio.server(interceptors=(interceptor,), options=(("grpc.so_reuseport", 0),))
        state = LiveState(door.store, clock)
        servicer = AccountServicer(
            door.accounts,
            door.joining,
            Projects(store=door.store, state=state, users=door.accounts, clock=clock),
            usages=None,  # type: ignore[arg-type]
            platform=Platform(cluster_id="c1", user_address="here:0", agent_address="here:1"),
            limiter=door.limiter,
        )
        accounts_pb2_grpc.add_AccountServiceServicer_to_server(servicer, server)
        identity = Identity(door.authority, ["localhost"])
        plain = listen_plain(server, "127.0.0.1:0")
        tls = listen_tls(server, "127.0.0.1:0", identity)
        agents = listen_agents(server, "127.0.0.1:0", identity)
        await server.start()
        stack.push_async_callback(server.stop, None)
        yield Live(door, str(plain), f"localhost:{tls.port}", f"localhost:{agents.port}")


ASK = accounts_pb2.GetCallerRequest()


async def code_of(call) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def join(live: Live, node: str) -> tuple[bytes, bytes]:
    """Join over TLS as a machine does; returns certificate and key."""
    issued = await live.door.joining.create_token("root")
    request, key = make_request()
    secret, _, digest = issued.text.partition(".")
    assert digest == live.door.authority.digest
    answer = await live.secure(live.tls).JoinNode(
        accounts_pb2.JoinNodeRequest(secret=secret, node=node, signing_request=request), timeout=60
    )
    assert answer.authority == live.door.authority.pem
    assert answer.agent_address == "here:1"
    return answer.certificate, key


async def test_a_joined_node_is_known_by_its_certificate(live: Live) -> None:
    certificate, key = await join(live, "gpu-1")
    stub = live.secure(live.agents, cert=certificate, key=key)
    assert (await stub.GetCaller(ASK, timeout=60)).node == "gpu-1"


async def test_a_node_speaks_for_itself_alone(live: Live) -> None:
    certificate, key = await join(live, "gpu-1")
    stub = live.secure(live.agents, cert=certificate, key=key)
    request, _ = make_request()
    # without a secret: its own name yes, another name no
    own = accounts_pb2.JoinNodeRequest(node="gpu-1", signing_request=request)
    assert (await stub.JoinNode(own, timeout=60)).certificate
    other = accounts_pb2.JoinNodeRequest(node="gpu-2", signing_request=request)
    code = await code_of(live.secure(live.tls).JoinNode(other, timeout=60))
    assert code == grpc.StatusCode.UNAUTHENTICATED


async def test_a_renewed_certificate_replaces_the_old_one(live: Live) -> None:
    old, old_key = await join(live, "gpu-1")
    request, key = make_request()
    old_stub = live.secure(live.agents, cert=old, key=old_key)
    answer = await old_stub.JoinNode(
        accounts_pb2.JoinNodeRequest(node="gpu-1", signing_request=request), timeout=60
    )
    stub = live.secure(live.agents, cert=answer.certificate, key=key)
    assert (await stub.GetCaller(ASK, timeout=60)).node == "gpu-1"
    again = live.secure(live.agents, cert=old, key=old_key)
    seen = [await code_or_ok(again) for _ in range(3)]
    assert seen[-1] == grpc.StatusCode.UNAUTHENTICATED


async def test_a_connection_is_worth_no_more_than_its_certificate(door: Door) -> None:
    issued = await door.joining.create_token("root")
    request, _ = make_request()
    secret = issued.text.partition(".")[0]
    signed = await door.joining.join(
        AnonymousCaller(), secret=secret, node="gpu-1", signing_request=request
    )
    known = await door.identities.of_certificate("gpu-1", signed.certificate)
    assert isinstance(known, NodeCaller)
    assert known.node == "gpu-1"
    door.clock.advance(CERTIFICATE_LIFE.total_seconds() - 1)
    assert await door.identities.of_certificate("gpu-1", signed.certificate) == known
    door.clock.advance(1)
    assert await door.identities.of_certificate("gpu-1", signed.certificate) is None


async def code_or_ok(stub) -> grpc.StatusCode:
    try:
        await stub.GetCaller(ASK, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_the_agents_port_lets_nobody_in_without_a_sound_certificate(live: Live) -> None:
    stranger = make_authority(SystemClock())
    request, key = make_request()

    class Past(SystemClock):
        def time(self) -> float:
            return super().time() - 2 * CERTIFICATE_LIFE.total_seconds()

    authority = live.door.authority
    late = Authority(authority._certificate, authority._key, Past())
    server_pair = authority.issue_server(["gpu-1"])
    attempts = {
        "none": (b"", b""),
        "of another authority": (stranger.sign_node("gpu-1", request).certificate, key),
        "expired": (late.sign_node("gpu-1", request).certificate, key),
        "of a listener": (server_pair.chain, server_pair.key),
    }
    for name, (certificate, its_key) in attempts.items():
        stub = live.secure(live.agents, cert=certificate, key=its_key)
        code = await code_of(stub.GetCaller(ASK, timeout=60))
        assert code == grpc.StatusCode.UNAVAILABLE, name
    with pytest.raises(grpc.aio.AioRpcError):
        async with grpc.aio.insecure_channel(live.agents) as plain:
            await accounts_pb2_grpc.AccountServiceStub(plain).GetCaller(ASK, timeout=60)


async def test_a_certificate_signed_but_never_claimed_is_worth_nothing(live: Live) -> None:
    request, key = make_request()
    certificate = live.door.authority.sign_node("gpu-9", request).certificate
    stub = live.secure(live.agents, cert=certificate, key=key)
    assert await code_or_ok(stub) == grpc.StatusCode.UNAUTHENTICATED


async def test_clients_refuse_a_server_of_another_authority(live: Live) -> None:
    stub = live.secure(live.tls, authority=make_authority(SystemClock()))
    assert await code_of(stub.GetCaller(ASK, timeout=60)) == grpc.StatusCode.UNAVAILABLE


async def test_every_listener_also_bears_the_platforms_name(live: Live) -> None:
    credentials = grpc.ssl_channel_credentials(live.door.authority.pem)
    target = live.tls.replace("localhost", "127.0.0.1")
    options = (("grpc.ssl_target_name_override", SERVER_NAME),)
    async with grpc.aio.secure_channel(target, credentials, options) as channel:
        stub = accounts_pb2_grpc.AccountServiceStub(channel)
        assert await code_of(stub.GetCaller(ASK, timeout=60)) == grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_work_over_tls_and_account_calls_do_what_they_say(live: Live) -> None:
    door = live.door
    await door.accounts.create_user("root", Role.ADMIN, "")
    root = (("authorization", f"Bearer {(await door.accounts.create_token('root')).secret.text}"),)
    stub = live.secure(live.tls)
    made = await stub.CreateUser(
        accounts_pb2.CreateUserRequest(name="kim", team="lab"), metadata=root
    )
    assert (made.user.name, made.user.team, made.user.role) == (
        "kim",
        "lab",
        accounts_pb2.ROLE_MEMBER,
    )
    token = await stub.CreateToken(accounts_pb2.CreateTokenRequest(user="kim"), metadata=root)
    kim = (("authorization", f"Bearer {token.token}"),)
    who = await stub.GetCaller(ASK, metadata=kim)
    assert (who.user.name, who.cluster_id) == ("kim", "c1")
    for_root = stub.CreateToken(accounts_pb2.CreateTokenRequest(user="root"), metadata=kim)
    assert await code_of(for_root) == grpc.StatusCode.PERMISSION_DENIED
    revoke_root = stub.RevokeToken(accounts_pb2.RevokeTokenRequest(user="root"), metadata=kim)
    assert await code_of(revoke_root) == grpc.StatusCode.PERMISSION_DENIED
    users = await stub.ListUsers(accounts_pb2.ListUsersRequest(), metadata=root)
    assert [user.name for user in users.users] == ["kim", "root"]
    request = accounts_pb2.ListUsersRequest(page_size=1)
    for name, cursor in (("kim", "kim"), ("root", "")):
        page = await stub.ListUsers(request, metadata=root)
        assert ([user.name for user in page.users], page.next_cursor) == ([name], cursor)
        request.cursor = page.next_cursor
    wrong = stub.ListUsers(accounts_pb2.ListUsersRequest(cursor="None"), metadata=root)
    assert await code_of(wrong) == grpc.StatusCode.INVALID_ARGUMENT
    assert (await stub.RevokeToken(accounts_pb2.RevokeTokenRequest(), metadata=kim)).revoked == 1
    assert await code_of(stub.GetCaller(ASK, metadata=kim)) == grpc.StatusCode.UNAUTHENTICATED
    await stub.DeleteUser(accounts_pb2.DeleteUserRequest(name="kim"), metadata=root)
    join_token = await stub.CreateJoinToken(accounts_pb2.CreateJoinTokenRequest(), metadata=root)
    assert join_token.token.endswith("." + door.authority.digest)
    assert join_token.address == "here:0"
    assert token.address == f"here:0#{door.authority.digest}"


def test_nobody_joins_a_platform_that_does_not_serve_agents() -> None:
    assert not Platform(cluster_id="c1", user_address="here:0").join_address


async def test_guessing_join_secrets_is_limited(live: Live) -> None:
    request, _ = make_request()
    stub = live.secure(live.tls)
    good = (await live.door.joining.create_token("root")).text.partition(".")[0]

    def ask(secret: str):
        message = accounts_pb2.JoinNodeRequest(secret=secret, node="a", signing_request=request)
        return stub.JoinNode(message, timeout=60)

    for guess in range(10):
        assert await code_of(ask(f"nsml_{guess:043}")) == grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError, match="too many"):
        await ask(good)


async def test_join_tokens_expire_and_bad_ones_are_refused(door: Door) -> None:
    issued = await door.joining.create_token("root", 60)
    secret = issued.text.partition(".")[0]
    request, _ = make_request()
    for wrong in ("", "x", issued.text, secret[:-1], secret + "x"):
        with pytest.raises(NotSignedIn):
            await door.joining.join(NOBODY, secret=wrong, node="a", signing_request=request)
    await door.joining.join(NOBODY, secret=secret, node="a", signing_request=request)
    door.clock.advance(60)
    with pytest.raises(NotSignedIn):
        await door.joining.join(NOBODY, secret=secret, node="b", signing_request=request)
    for life_s in (-1, 8 * 86400, float("nan")):
        with pytest.raises(InvalidRequest):
            await door.joining.create_token("root", life_s)


async def test_a_name_belongs_to_the_key_that_joined_first(door: Door) -> None:
    secret = (await door.joining.create_token("root")).text.partition(".")[0]
    first, _ = make_request()
    second, _ = make_request()
    await door.joining.join(NOBODY, secret=secret, node="a", signing_request=first)
    # a lost answer is asked for again
    await door.joining.join(NOBODY, secret=secret, node="a", signing_request=first)
    with pytest.raises(AlreadyExists):
        await door.joining.join(NOBODY, secret=secret, node="a", signing_request=second)


async def test_nobody_joins_under_the_name_of_the_local_node(door: Door) -> None:
    token = await door.accounts.create_node_token("here")
    secret = (await door.joining.create_token("root")).text.partition(".")[0]
    request, _ = make_request()
    with pytest.raises(AlreadyExists):
        await door.joining.join(NOBODY, secret=secret, node="here", signing_request=request)
    who = await door.identities.of_secret(token.secret, thorough=True)
    assert isinstance(who, NodeCaller)
    assert who.node == "here"
    await door.accounts.create_node_token("here")
    await door.joining.join(NOBODY, secret=secret, node="there", signing_request=request)
    with pytest.raises(AlreadyExists):
        await door.accounts.create_node_token("there")


async def test_the_local_node_gets_a_certificate_by_its_token_and_keeps_its_name(
    door: Door,
) -> None:
    """Also when its token or its key is lost: it is a control plane's machine, whose owner is trusted."""
    here = NodeCaller(node="here")
    join_token = (await door.joining.create_token("root")).text.partition(".")[0]
    for _ in range(2):
        token = await door.accounts.create_node_token("here")
        request, _ = make_request()
        signed = await door.joining.join(here, secret="", node="here", signing_request=request)
        known = await door.identities.of_secret(token.secret, thorough=True)
        assert isinstance(known, NodeCaller)
        assert known.node == "here"
        assert await door.identities.of_certificate("here", signed.certificate) == known
        other, _ = make_request()
        with pytest.raises(AlreadyExists):
            await door.joining.join(NOBODY, secret=join_token, node="here", signing_request=other)
        assert await door.identities.of_certificate("here", signed.certificate) == known


@pytest.mark.parametrize(
    ("stored", "joined"),
    [
        (b"token", Joined(has_token=True)),
        (b"0a" * 32, Joined(key="0a" * 32)),
        (b"token " + b"0a" * 32, Joined(has_token=True, key="0a" * 32)),
    ],
)
async def test_by_what_nodes_are_known_is_stored_as_ever(
    door: Door, stored: bytes, joined: Joined
) -> None:
    put = JOINED.put("gpu-1", joined)
    assert put.value == stored
    await door.store.commit(Transaction(success=(put,)))
    known = await JOINED.get(door.store, "gpu-1")
    assert known is not None
    assert known.value == joined


async def test_the_subject_of_a_request_is_ignored(door: Door) -> None:
    request, _ = make_request(node="root")
    signed = door.authority.sign_node("gpu-1", request)
    certificate = x509.load_pem_x509_certificate(signed.certificate)
    names = [attribute.value for attribute in certificate.subject]
    assert names == ["gpu-1"]
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca


@pytest.mark.parametrize("node", ["", "A", "a.b", "-a", "a" * 64, "a\n", "../a", "a/b"])
async def test_malformed_node_names_are_refused(door: Door, node: str) -> None:
    secret = (await door.joining.create_token("root")).text.partition(".")[0]
    request, _ = make_request()
    with pytest.raises(InvalidRequest):
        await door.joining.join(NOBODY, secret=secret, node=node, signing_request=request)


def test_malformed_signing_requests_are_refused() -> None:
    authority = make_authority(SystemClock())
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    with_rsa = (
        x509.CertificateSigningRequestBuilder().subject_name(name).sign(rsa_key, hashes.SHA256())
    )
    other_curve, _ = make_request(key=ec.generate_private_key(ec.SECP384R1()))
    sound, _ = make_request()
    der = x509.load_pem_x509_csr(sound).public_bytes(serialization.Encoding.DER)
    forged = bytearray(der)
    forged[-5] ^= 1
    forged_pem = (
        b"-----BEGIN CERTIFICATE REQUEST-----\n"
        + base64.encodebytes(bytes(forged))
        + b"-----END CERTIFICATE REQUEST-----\n"
    )
    bad = [b"", b"x", sound[:-60], b"y" * 20_000, with_rsa.public_bytes(serialization.Encoding.PEM)]
    for request in [*bad, other_curve, forged_pem]:
        with pytest.raises(InvalidRequest):
            authority.sign_node("a", request)


def test_the_authority_is_made_once_and_kept_private(tmp_path: Path) -> None:
    first = open_authority(tmp_path / "authority", SystemClock())
    assert open_authority(tmp_path / "authority", SystemClock()).digest == first.digest
    key = tmp_path / "authority" / "ca.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o640)
    with pytest.raises(PermissionError):
        open_authority(tmp_path / "authority", SystemClock())
    key.chmod(0o600)
    other = open_authority(tmp_path / "other", SystemClock())
    (tmp_path / "authority" / "ca.pem").write_bytes(other.pem)
    with pytest.raises(ValueError, match="belong together"):
        open_authority(tmp_path / "authority", SystemClock())


def test_a_certificate_about_to_expire_is_renewed() -> None:
    class Moving(SystemClock):
        ahead = 0.0

        def time(self) -> float:
            return super().time() + self.ahead

    clock = Moving()
    identity = Identity(make_authority(clock), ["example.org", "10.0.0.1"])
    first = identity.current()
    assert identity.current() is first
    clock.ahead = dt.timedelta(days=61).total_seconds()
    second = identity.current()
    assert second.expires_at > first.expires_at
    names = x509.load_pem_x509_certificates(second.chain)[0].extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert "example.org" in names.value.get_values_for_type(x509.DNSName)
    assert len(x509.load_pem_x509_certificates(second.chain)) == 2


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:18553", "example.org:80"])
async def test_plaintext_beyond_this_machine_is_refused(address: str) -> None:
    server = grpc.aio.server()
    with pytest.raises(ListenRefused, match=r"refuse to listen on .* without TLS"):
        listen_plain(server, address)
    await server.stop(None)


@pytest.mark.parametrize(
    "address", ["", "x", "127.0.0.1", "127.0.0.1:", ":1", "a:99999", "unix:", "unix:x"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ListenRefused):
        parse_address(address)


async def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        with pytest.raises(ListenRefused, match="choose another port"):
            listen_plain(server, f"127.0.0.1:{taken.getsockname()[1]}")
        await server.stop(None)


async def test_a_dead_socket_is_replaced_and_a_live_one_or_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = grpc.aio.server()
    listen_plain(server, f"unix:{path}")
    await server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = grpc.aio.server()
    with pytest.raises(ListenRefused, match="another process listens"):
        listen_plain(other, f"unix:{path}")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ListenRefused, match="in the way"):
        listen_plain(other, f"unix:{tmp_path / 'file'}")
    assert (tmp_path / "file").read_text() == "precious"
    await other.stop(None)
    await server.stop(None)


def test_only_the_node_itself_may_speak_for_it() -> None:
    require_node(NodeCaller(node="a"), "a")
    for who in (NodeCaller(node="b"), UserCaller(user=User(name="a", role=Role.ADMIN))):
        with pytest.raises(Denied):
            require_node(who, "a")
    with pytest.raises(NotSignedIn):
        require_node(NOBODY, "a")


async def test_a_machine_that_joins_under_an_old_name_is_another_node(door: Door) -> None:
    """Once a name was forgotten: neither certificate nor token of the machine before is good any more."""
    secret = (await door.joining.create_token("root")).text.partition(".")[0]

    async def join(node: str) -> bytes:
        request, _ = make_request()
        return (
            await door.joining.join(NOBODY, secret=secret, node=node, signing_request=request)
        ).certificate

    first = await join("gpu-1")
    before = await door.identities.of_certificate("gpu-1", first)
    token = await door.accounts.create_node_token("here")
    for node in ("gpu-1", "here"):
        done = await door.store.commit(Transaction(success=(JOINED.delete(node),)))
        await door.identities.caught_up(done.revision)
    door.clock.advance(5)
    second = await join("gpu-1")
    await join("here")
    after = await door.identities.of_certificate("gpu-1", second)
    assert isinstance(before, NodeCaller)
    assert isinstance(after, NodeCaller)
    assert before.id != after.id
    assert identity_of(before) != identity_of(after)
    assert after.joined_at == door.clock.now > before.joined_at
    assert await door.identities.of_certificate("gpu-1", first) is None
    assert await door.identities.of_secret(token.secret, thorough=True) is None
    # Renewals are the same node's.
    request, _ = make_request()
    renewed = await door.joining.join(after, secret="", node="gpu-1", signing_request=request)
    assert await door.identities.of_certificate("gpu-1", renewed.certificate) == after


@pytest.mark.parametrize("node", ["nsml-controlplane", "nsml", "nsml-gpu1", "localhost"])
async def test_no_machine_joins_under_a_name_of_the_platform(door: Door, node: str) -> None:
    secret = (await door.joining.create_token("root")).text.partition(".")[0]
    request, _ = make_request()
    with pytest.raises(InvalidRequest):
        await door.joining.join(NOBODY, secret=secret, node=node, signing_request=request)
    with pytest.raises(InvalidRequest):
        await door.accounts.create_node_token(node)
    # One that joined before there was such a rule goes on.
    await door.store.commit(Transaction(success=(JOINED.put(node, Joined(has_token=True)),)))
    here = NodeCaller(node=node)
    await door.accounts.create_node_token(node)
    await door.joining.join(here, secret="", node=node, signing_request=request)
