"""Every method of every service, called by everybody, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import h2.connection
import pytest
from google.rpc import error_details_pb2, status_pb2

from controlplane.access import anonymous_limits as anonymous
from controlplane.access.access_table import TABLE, AllowedCallers, Row
from controlplane.access.accounts import DAY_S
from controlplane.access.authority import Authority, make_authority
from controlplane.access.current import caller, refused_by_now
from controlplane.access.identities import Identities
from controlplane.access.incoming_memory import Arriving
from controlplane.access.interceptor import MOST_REQUESTS, AccessInterceptor, _Ending
from controlplane.access.listeners import Identity, listen_agents
from controlplane.access.records import SSH_KEYS
from controlplane.access.secret import Secret, new_secret
from controlplane.domain.errors import InvalidRequest, NotSignedIn, NsmlError, Unavailable
from controlplane.domain.identity import (
    AnonymousCaller,
    Caller,
    JumpHostCaller,
    NodeCaller,
    PeerCaller,
    Role,
    UserCaller,
)
from controlplane.store.interface import Transaction
from controlplane.stored.v1.records_pb2 import SshKeyRecord
from controlplane.wire.errors import DETAILS, refuse
from nsml.common.clock import SystemClock
from nsml.spec.metadata import SSH_KEY

from .conftest import Door, HandClock, open_door
from .test_access_table import contract_files

OPEN, UNKNOWN, DENIED = "open", "NOT_SIGNED_IN", "DENIED"

# Who may do what, for each kind of row: all cells are here, none is worked out from the code.
#                        anonymous expired  revoked  removed  garbage  member   other    admin    node
CELLS = {
    AllowedCallers.NODE | AllowedCallers.PEER: (
        *(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
        *(DENIED, DENIED, DENIED, OPEN),
    ),
    **dict.fromkeys(
        (AllowedCallers.USER, AllowedCallers.USER | AllowedCallers.JUMP_HOST),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, OPEN, OPEN, OPEN, DENIED),
    ),
    AllowedCallers.JUMP_HOST: (
        *(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
        *(DENIED, DENIED, DENIED, DENIED),
    ),
    AllowedCallers.ADMIN: (
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        DENIED,
        DENIED,
        OPEN,
        DENIED,
    ),
    AllowedCallers.NODE: (
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        DENIED,
        DENIED,
        DENIED,
        OPEN,
    ),
    AllowedCallers.USER | AllowedCallers.NODE: (
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        OPEN,
        OPEN,
        OPEN,
        OPEN,
    ),
    **dict.fromkeys(
        (
            AllowedCallers.ANONYMOUS | AllowedCallers.USER | AllowedCallers.NODE,
            AllowedCallers.ANONYMOUS
            | AllowedCallers.USER
            | AllowedCallers.NODE
            | AllowedCallers.PEER,
        ),
        (*(OPEN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN), *(OPEN, OPEN, OPEN, OPEN)),
    ),
}
FOR_PEERS = {
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/List",
    "/grpc.health.v1.Health/Watch",
    "/nsml.v1.AgentService/Control",
    "/nsml.v1.AgentService/Tunnel",
}
WHO = ("anonymous", "expired", "revoked", "removed", "garbage", "member", "other", "admin", "node")


def shapes() -> dict[str, tuple[bool, bool]]:
    return {
        f"/{service.full_name}/{method.name}": (method.client_streaming, method.server_streaming)
        for file in contract_files()
        for service in file.services_by_name.values()
        for method in service.methods
    }


SHAPES = shapes()


def name_of_caller() -> bytes:
    match caller():
        case UserCaller(user=user):
            return f"user {user.name}".encode()
        case NodeCaller(node=node):
            return f"node {node}".encode()
        case PeerCaller(member=member, node=node):
            return f"peer {member} for {node or 'itself'}".encode()
        case JumpHostCaller(user=user, key_name=name):
            return f"{name} of {user.name}".encode()
        case AnonymousCaller():
            return b"nobody"


class Everything(grpc.GenericRpcHandler):
    """Serves every method that has a shape, and answers with the name of the caller."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        takes_many, gives_many = SHAPES.get(details.method, (None, None))
        if takes_many is None:
            return None

        async def answer(_: Any, __: Any) -> bytes:
            return name_of_caller()

        async def stream(requests: Any, _: Any) -> AsyncIterator[bytes]:
            yield name_of_caller()
            if takes_many:
                async for _request in requests:
                    yield name_of_caller()

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[(takes_many, gives_many)]
        return make(stream if gives_many else answer)


@contextlib.asynccontextmanager
async def serving(
    door: Door,
    *,
    table: Any = TABLE,
    generic: Any = None,
    arriving: Arriving | None = None,
    options: Any = None,
) -> AsyncIterator[grpc.aio.Channel]:
    interceptor = AccessInterceptor(
        door.identities, table, limiter=door.limiter, refuse=refuse, arriving=arriving
    )
    server = grpc.aio.server(interceptors=(interceptor,), options=options)
    server.add_generic_rpc_handlers((generic or Everything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            vars(channel).update(port=port, access=interceptor)
            yield channel
    finally:
        await server.stop(None)


async def tokens_of_everybody(door: Door) -> dict[str, str | None]:
    for name in ("kim", "lee", "gone"):
        await door.accounts.create_user(name, Role.MEMBER, "")
    await door.accounts.create_user("root", Role.ADMIN, "")
    expired = await door.accounts.create_token("kim", DAY_S)
    door.clock.advance(2 * DAY_S)
    revoked = await door.accounts.create_token("kim")
    await door.accounts.revoke(revoked.secret.fingerprint)
    removed = await door.accounts.create_token("gone")
    await door.accounts.delete_user("gone")
    await door.accounts.create_user("gone", Role.ADMIN, "", restore=True)
    issued = {
        "expired": expired,
        "revoked": revoked,
        "removed": removed,
        "member": await door.accounts.create_token("kim"),
        "other": await door.accounts.create_token("lee"),
        "admin": await door.accounts.create_token("root"),
        "node": await door.accounts.create_node_token("gpu-1"),
    }
    texts: dict[str, str | None] = {name: token.secret.text for name, token in issued.items()}
    return {**texts, "anonymous": None, "garbage": "nsml_" + "x" * 43}


async def outcome(
    channel: grpc.aio.Channel, method: str, token: str | None, *, key: str = ""
) -> str:
    """`open`, or the reason of the refusal; `key` is the ssh key that the caller names."""
    said = {"authorization": f"Bearer {token}" if token else "", SSH_KEY: key}
    metadata = tuple((name, word) for name, word in said.items() if word)
    for _ in range(20):
        try:
            return f"{OPEN}: {(await reply(channel, method, metadata)).decode()}"
        except grpc.aio.AioRpcError as error:
            # gRPC forgets a refusal that comes while it sends a message of a stream: it is asked for once more.
            if error.details() != "Internal error from Core":
                return reason_of(error)
    raise AssertionError("never a word of why")


async def reply(channel: grpc.aio.Channel, method: str, metadata: Any) -> bytes:
    takes_many, gives_many = SHAPES[method]
    name = f"{'stream' if takes_many else 'unary'}_{'stream' if gives_many else 'unary'}"
    request = iter([b"x"]) if takes_many else b"x"
    call = getattr(channel, name)(method)(request, metadata=metadata, timeout=60)
    if gives_many:
        return [piece async for piece in call][-1]
    return await call


def reason_of(error: grpc.aio.AioRpcError) -> str:
    codes = {
        UNKNOWN: grpc.StatusCode.UNAUTHENTICATED,
        DENIED: grpc.StatusCode.PERMISSION_DENIED,
    }
    details = dict(error.trailing_metadata())[DETAILS]
    status = status_pb2.Status.FromString(details)
    fact = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(fact)
    assert fact.domain == "nsml"
    assert codes[fact.reason] == error.code()
    return fact.reason


async def test_every_method_by_every_identity(clock: HandClock) -> None:
    names = {"member": "user kim", "other": "user lee", "admin": "user root", "node": "node gpu-1"}
    wrong = []
    async with open_door(clock) as door, serving(door) as channel:
        tokens = await tokens_of_everybody(door)
        assert set(tokens) == set(WHO)
        for method, row in TABLE.items():
            for who, expected in zip(WHO, CELLS[row.doors], strict=True):
                found = await outcome(channel, method, tokens[who])
                if expected == OPEN:
                    expected = f"{OPEN}: {names.get(who, 'nobody')}"  # noqa: PLW2901
                if found != expected:
                    wrong.append((method, who, expected, found))
    assert not wrong


@contextlib.asynccontextmanager
async def as_peer(
    door: Door, *, authority: Authority | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel with the certificate of the control plane "cp2" to an agents' listener."""
    interceptor = AccessInterceptor(door.identities, TABLE, limiter=door.limiter, refuse=refuse)
    server = grpc.aio.server(interceptors=(interceptor,))
    server.add_generic_rpc_handlers((Everything(),))
    where = listen_agents(server, "127.0.0.1:0", Identity(door.authority, ["localhost"]))
    await server.start()
    pair = (authority or door.authority).issue_peer("cp2")
    credentials = grpc.ssl_channel_credentials(door.authority.pem, pair.key, pair.chain)
    try:
        async with grpc.aio.secure_channel(f"localhost:{where.port}", credentials) as channel:
            yield channel
    finally:
        await server.stop(None)


async def test_another_control_plane_may_pass_agents_calls_on_and_nothing_else() -> None:
    async with open_door(SystemClock()) as door, as_peer(door) as channel:
        for method in TABLE:
            found = await outcome(channel, method, None)
            expected = f"{OPEN}: peer cp2 for itself" if method in FOR_PEERS else DENIED
            assert (method, found) == (method, expected)
        behalf = (("nsml-node", "gpu-1"),)
        passed = await reply(channel, "/nsml.v1.AgentService/Control", behalf)
        assert passed == b"peer cp2 for gpu-1"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reply(channel, "/nsml.v1.AgentService/Ingest", behalf)
        assert reason_of(caught.value) == DENIED
        # With a user's token it is the user who calls.
        user = await tokens_of_somebody(door)
        found = await outcome(channel, "/nsml.v1.SessionService/GetSession", user)
        assert found == f"{OPEN}: user kim"


async def tokens_of_somebody(door: Door) -> str:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    return (await door.accounts.create_token("kim")).secret.text


async def test_nobody_else_speaks_for_a_node(clock: HandClock) -> None:
    behalf = ("nsml-node", "gpu-2")
    async with open_door(clock) as door, serving(door) as channel:
        tokens = await tokens_of_everybody(door)
        node = (("authorization", f"Bearer {tokens['node']}"), behalf)
        assert await reply(channel, "/nsml.v1.AgentService/Control", node) == b"node gpu-1"
        for who in ("anonymous", "member", "admin"):
            token = tokens[who]
            metadata = ((("authorization", f"Bearer {token}"),) if token else ()) + (behalf,)
            with pytest.raises(grpc.aio.AioRpcError):
                await reply(channel, "/nsml.v1.AgentService/Control", metadata)


FOR_JUMP_HOSTS = {"/nsml.v1.SessionService/OpenTunnel", "/nsml.v1.SshKeyService/GetSshKeyUser"}
KEY = "ab" * 32


async def with_key(door: Door, user: str = "kim") -> Secret:
    """The secret of the jump host; `user` has a key."""
    record = SshKeyRecord(user=user, name="laptop", public_key="ssh-ed25519 AAAA")
    await door.store.commit(Transaction(compares=(), success=(SSH_KEYS.put(KEY, record),)))
    secret = new_secret(secrets.token_bytes)
    door.identities.admit_jump_host(secret)
    return secret


async def test_a_jump_host_leads_the_users_of_keys_and_does_nothing_else(clock: HandClock) -> None:
    async with open_door(clock) as door, serving(door) as channel:
        tokens = await tokens_of_everybody(door)
        secret = await with_key(door)
        for method in TABLE:
            found = await outcome(channel, method, secret.text, key=KEY)
            expected = f"{OPEN}: laptop of kim" if method in FOR_JUMP_HOSTS else DENIED
            assert (method, found) == (method, expected)
            if method in FOR_JUMP_HOSTS:
                for who in WHO:  # nobody else speaks for a key
                    assert await outcome(channel, method, tokens[who], key=KEY) == UNKNOWN, who
        tunnel = "/nsml.v1.SessionService/OpenTunnel"
        assert await outcome(channel, tunnel, secret.text) == UNKNOWN
        assert await outcome(channel, tunnel, secret.text, key="cd" * 32) == UNKNOWN
        door.identities.admit_jump_host(new_secret(secrets.token_bytes))  # it was started again
        assert await outcome(channel, tunnel, secret.text, key=KEY) == UNKNOWN


async def test_a_key_goes_with_its_user(clock: HandClock) -> None:
    async with open_door(clock) as door, serving(door) as channel:
        await door.accounts.create_user("root", Role.ADMIN, "")
        await door.accounts.create_user("kim", Role.MEMBER, "")
        secret = await with_key(door)
        tunnel = "/nsml.v1.SessionService/OpenTunnel"
        assert await outcome(channel, tunnel, secret.text, key=KEY) == f"{OPEN}: laptop of kim"
        record = await SSH_KEYS.get(door.store, KEY)
        assert record is not None
        await door.accounts.delete_user("kim")
        assert await outcome(channel, tunnel, secret.text, key=KEY) == UNKNOWN
        # one that a removal has left, before a new user of the name
        await door.store.commit(
            Transaction(compares=(), success=(SSH_KEYS.put(KEY, record.value),))
        )
        await door.accounts.create_user("kim", Role.MEMBER, "", restore=True)
        assert await outcome(channel, tunnel, secret.text, key=KEY) == UNKNOWN


async def test_another_control_plane_passes_on_what_its_jump_host_asks() -> None:
    async with open_door(SystemClock()) as door, as_peer(door) as channel:
        await door.accounts.create_user("kim", Role.MEMBER, "")
        await with_key(door)
        for method in FOR_JUMP_HOSTS:
            assert await outcome(channel, method, None, key=KEY) == f"{OPEN}: laptop of kim"
        assert await outcome(channel, "/nsml.v1.SessionService/GetSession", None, key=KEY) == DENIED


async def test_a_control_plane_of_another_authority_is_none() -> None:
    clock = SystemClock()
    async with (
        open_door(clock) as door,
        as_peer(door, authority=make_authority(clock)) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reply(channel, "/grpc.health.v1.Health/Check", ())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_no_node_is_called_as_control_planes_are(clock: HandClock) -> None:
    async with open_door(clock) as door:
        with pytest.raises(InvalidRequest, match="node name"):
            door.authority.sign_node("controlplane:cp2", b"")


async def test_a_method_without_a_row_is_refused_to_all(door: Door) -> None:
    method = "/nsml.v1.SessionService/GetSession"
    table = {name: row for name, row in TABLE.items() if name != method}
    async with serving(door, table=table) as channel:
        tokens = await tokens_of_everybody(door)
        for who in ("anonymous", "member", "admin", "node"):
            assert await outcome(channel, method, tokens[who]) == DENIED


async def test_a_method_that_nobody_serves_is_unimplemented(door: Door) -> None:
    async with serving(door) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/nsml.v1.SessionService/Nonsense")(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "header", ["Basic abc", "Bearer ", "bearer nsml_x", "x" * 200, "Bearer a b"]
)
async def test_a_malformed_token_is_refused_even_where_strangers_may_call(
    door: Door, header: str
) -> None:
    async with serving(door) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reply(channel, "/grpc.health.v1.Health/Check", (("authorization", header),))
        assert reason_of(caught.value) == UNKNOWN


async def test_concurrent_calls_do_not_mix_up_their_callers(door: Door) -> None:
    async with serving(door) as channel:
        tokens = await tokens_of_everybody(door)
        method = "/nsml.v1.ContentService/GetBlobs"
        asked = ["member", "other", "admin", "node"] * 25
        found = await asyncio.gather(*(outcome(channel, method, tokens[who]) for who in asked))
    names = {"member": "user kim", "other": "user lee", "admin": "user root", "node": "node gpu-1"}
    assert found == [f"{OPEN}: {names[who]}" for who in asked]


async def test_revocation_counts_at_once_and_expiry_to_the_second(door: Door) -> None:
    method = "/nsml.v1.AccountService/GetCaller"
    await door.accounts.create_user("kim", Role.MEMBER, "")
    token = await door.accounts.create_token("kim", 60)
    async with serving(door) as channel:
        assert await outcome(channel, method, token.secret.text) == f"{OPEN}: user kim"
        door.clock.advance(59)
        assert await outcome(channel, method, token.secret.text) == f"{OPEN}: user kim"
        door.clock.advance(1)
        assert await outcome(channel, method, token.secret.text) == UNKNOWN
        other = await door.accounts.create_token("kim")
        assert await outcome(channel, method, other.secret.text) == f"{OPEN}: user kim"
        await door.accounts.revoke(other.secret.fingerprint)
        assert await outcome(channel, method, other.secret.text) == UNKNOWN


async def test_who_guesses_is_told_to_wait_and_asks_the_store_no_more(door: Door) -> None:
    method = "/nsml.v1.AccountService/GetCaller"
    await door.accounts.create_user("kim", Role.MEMBER, "")
    good = await door.accounts.create_token("kim")
    async with serving(door) as channel:
        for guess in range(30):
            call = channel.unary_unary(method)
            header = (("authorization", f"Bearer nsml_{guess:043}"),)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", metadata=header)
            is_limited = "too many" in (caught.value.details() or "")
            assert is_limited == (guess >= 10)
        assert await outcome(channel, method, good.secret.text) == f"{OPEN}: user kim"


class Unwritten(grpc.GenericRpcHandler):
    """What a generated servicer does for methods that nobody wrote."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def unwritten(_: Any, context: Any) -> None:
            context.set_code(grpc.StatusCode.UNIMPLEMENTED)
            raise NotImplementedError("Method not implemented!")

        return grpc.unary_unary_rpc_method_handler(unwritten)


async def test_an_unwritten_method_is_unimplemented(door: Door) -> None:
    async with serving(door, generic=Unwritten()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_cells_cover_every_kind_of_row() -> None:
    kinds = {row.doors for row in TABLE.values()}
    assert kinds <= set(CELLS)
    assert all(len(cells) == len(WHO) for cells in CELLS.values())
    assert isinstance(next(iter(TABLE.values())), Row)


class Quiet(grpc.GenericRpcHandler):
    """Answers what it is asked to, and keeps what came; streams stay open until the caller ends."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.says: asyncio.Queue[bytes] = asyncio.Queue()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def gives(_: bytes, __: Any) -> AsyncIterator[bytes]:
            while True:
                yield await self.says.get()

        async def takes(requests: AsyncIterator[bytes], _: Any) -> bytes:
            async for request in requests:
                self.heard.append(request)
            return b"all of it"

        async def both(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                self.heard.append(request)
                yield request

        match SHAPES[details.method]:
            case (False, True):
                return grpc.unary_stream_rpc_method_handler(gives)
            case (True, False):
                return grpc.stream_unary_rpc_method_handler(takes)
            case _:
                return grpc.stream_stream_rpc_method_handler(both)


@pytest.mark.parametrize("end", ["revoked", "expired", "removed"])
async def test_an_open_stream_carries_nothing_more_once_its_token_has_ended(
    door: Door, end: str
) -> None:
    await door.accounts.create_user("root", Role.ADMIN, "")
    await door.accounts.create_user("kim", Role.MEMBER, "")
    token = await door.accounts.create_token("kim", 60)
    metadata = (("authorization", f"Bearer {token.secret.text}"),)
    quiet = Quiet()
    async with serving(door, generic=quiet) as channel:
        given = channel.unary_stream("/nsml.v1.SessionService/WatchSessions")(
            b"", metadata=metadata, timeout=30
        )
        taken = channel.stream_unary("/nsml.v1.ContentService/PutBlobs")(
            metadata=metadata, timeout=30
        )
        both = channel.stream_stream("/nsml.v1.SessionService/OpenTunnel")(
            metadata=metadata, timeout=30
        )
        quiet.says.put_nowait(b"before")
        assert await given.read() == b"before"
        await taken.write(b"before")
        await both.write(b"before")
        assert await both.read() == b"before"
        async with asyncio.timeout(60):
            while len(quiet.heard) < 2:  # noqa: ASYNC110 - of another task
                await asyncio.sleep(0.001)

        if end == "revoked":
            await door.accounts.revoke(token.secret.fingerprint)
        elif end == "removed":
            await door.accounts.delete_user("kim")
        else:
            door.clock.advance(61)
        quiet.says.put_nowait(b"after")
        await taken.write(b"after")
        await both.write(b"after")
        for answer in (given.read(), taken, both.read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer
            assert reason_of(caught.value) == UNKNOWN
    assert quiet.heard == [b"before", b"before"]


class Faltering(Identities):
    """Once asked to, does not answer a single time."""

    falters = False

    async def of_secret(self, secret: Secret, *, thorough: bool) -> Caller | None:
        if self.falters:
            self.falters = False
            raise Unavailable("your identity cannot be checked now")
        return await super().of_secret(secret, thorough=thorough)


async def test_a_stream_that_was_cut_short_is_not_told_to_be_answered(door: Door) -> None:
    await door.accounts.create_user("kim", Role.MEMBER, "")
    token = await door.accounts.create_token("kim")
    identities = Faltering(door.store, door.clock)
    quiet = Quiet()
    async with serving(replace(door, identities=identities), generic=quiet) as channel:
        put = channel.stream_unary("/nsml.v1.ContentService/PutBlobs")(
            metadata=(("authorization", f"Bearer {token.secret.text}"),), timeout=30
        )
        await put.write(b"first")
        async with asyncio.timeout(60):
            while not quiet.heard:  # noqa: ASYNC110 - of another task
                await asyncio.sleep(0.001)
        identities.falters = True
        await put.write(b"second")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await put
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert quiet.heard == [b"first"]


async def test_what_is_served_learns_that_its_caller_may_not_go_on(door: Door) -> None:
    """Also where nothing is said meanwhile; while the store does not answer nobody is cut off for it."""
    await door.accounts.create_user("kim", Role.MEMBER, "")
    token = await door.accounts.create_token("kim")
    identities = Faltering(door.store, door.clock)
    found: list[NsmlError | None] = []

    class Looking(Quiet):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            async def gives(_: bytes, __: Any) -> AsyncIterator[bytes]:
                while True:
                    said = await self.says.get()
                    found.append(await refused_by_now())
                    yield said

            return grpc.unary_stream_rpc_method_handler(gives)

    quiet = Looking()
    async with serving(replace(door, identities=identities), generic=quiet) as channel:
        call = channel.unary_stream("/nsml.v1.SessionService/WatchSessions")(
            b"", metadata=(("authorization", f"Bearer {token.secret.text}"),), timeout=30
        )
        quiet.says.put_nowait(b"as ever")
        assert await call.read() == b"as ever"
        identities.falters = True
        quiet.says.put_nowait(b"while the store is away")
        assert await call.read() == b"while the store is away"
        assert not identities.falters
        await door.accounts.revoke(token.secret.fingerprint)
        quiet.says.put_nowait(b"never read")
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
    assert found[:2] == [None, None]
    assert isinstance(found[2], NotSignedIn)


async def open_calls(channel: grpc.aio.Channel, method: str, count: int, token: str) -> list[Any]:
    """Calls whose one request never comes."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    return [channel.stream_unary(method)(metadata=metadata, timeout=60) for _ in range(count)]


async def test_nobody_waits_for_the_request_of_a_stranger(door: Door) -> None:
    async with serving(door) as channel:
        for token, expected in (("", "UNAUTHENTICATED"), ("nsml_" + "x" * 43, "UNAUTHENTICATED")):
            for call in await open_calls(channel, "/nsml.v1.SessionService/GetSession", 3, token):
                assert (await call.code()).name == expected


async def test_a_request_that_does_not_come_ends_its_call(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.access.interceptor.REQUEST_WITHIN_S", 0.1)
    async with serving(door) as channel:
        token = await tokens_of_somebody(door)
        (call,) = await open_calls(channel, "/nsml.v1.SessionService/GetSession", 1, token)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "no whole request" in await call.details()


async def test_of_one_user_only_so_many_requests_are_on_their_way(door: Door) -> None:
    """Each may hold as much as a whole one has; the next ones wait, and nobody else does."""
    method = "/nsml.v1.SessionService/GetSession"
    async with serving(door) as channel:
        tokens = await tokens_of_everybody(door)
        mine, theirs = str(tokens["member"]), str(tokens["other"])
        held = await open_calls(channel, method, MOST_REQUESTS, mine)
        while await outcome_within(channel, method, mine, 0.3) != "waits":
            pass  # until all of them have arrived
        assert (await outcome(channel, method, theirs)).startswith("open")
        held[0].cancel()
        assert (await outcome(channel, method, mine)).startswith("open")
        for call in held:
            call.cancel()


async def outcome_within(
    channel: grpc.aio.Channel, method: str, token: str, within_s: float
) -> str:
    try:
        async with asyncio.timeout(within_s):
            return await outcome(channel, method, token)
    except TimeoutError:
        return "waits"


CHECK = "/grpc.health.v1.Health/Check"
LIST = "/grpc.health.v1.Health/List"


async def first_to_end_of(calls: list[Any]) -> tuple[int, str]:
    """The number of the first call that ends, and what it was told."""
    ends = [asyncio.ensure_future(call.code()) for call in calls]
    done, left = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    for one in left:
        one.cancel()
    (number,) = [at for at, one in enumerate(ends) if one in done]
    assert ends[number].result() is grpc.StatusCode.UNAVAILABLE
    return number, await calls[number].details()


async def test_strangers_have_so_many_calls_open_and_the_oldest_unfinished_one_gives_way(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anonymous, "CALLS", anonymous.Room(3, 1_000))
    async with serving(door) as channel:
        calls: list[Any] = []
        for _ in range(3):
            calls += await open_calls(channel, LIST, 1, "")
            # Each is there before the next one comes.
            assert (await outcome(channel, CHECK, None)).startswith(OPEN)
        calls += await open_calls(channel, LIST, 1, "")
        number, words = await first_to_end_of(calls)
        assert (number, "no whole request" in words) == (0, True)
        # A whole one is answered in its place.
        assert (await outcome(channel, LIST, None)).startswith(OPEN)
        assert (await outcome(channel, LIST, await tokens_of_somebody(door))).startswith(OPEN)


async def test_health_has_room_of_its_own(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do checks use up what others have, nor others what checks have."""
    monkeypatch.setattr(anonymous, "CALLS", anonymous.Room(100, 1))
    few = replace(anonymous.ROOMS[CHECK], all=2)
    monkeypatch.setitem(anonymous.ROOMS, CHECK, few)
    async with serving(door) as channel:
        checks = await open_calls(channel, CHECK, 2, "")
        assert (await outcome(channel, LIST, None)).startswith(OPEN)
        assert (await outcome(channel, CHECK, None)).startswith(OPEN)
        (listing,) = await open_calls(channel, LIST, 1, "")
        assert (await outcome(channel, CHECK, None)).startswith(OPEN)
        for call in (*checks, listing):
            call.cancel()


def test_no_address_takes_the_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is open is answered, so that nothing gives way."""
    monkeypatch.setattr(anonymous, "CALLS", anonymous.Room(2, 3))
    few = replace(anonymous.ROOMS[anonymous.WATCH], each=1)
    monkeypatch.setitem(anonymous.ROOMS, anonymous.WATCH, few)
    calls = anonymous.AnonymousCalls()
    here = [calls.of(LIST, "10.0.0.7") for _ in range(3)]
    assert [one.enter() is None for one in here] == [True, True, False]
    there = [calls.of(LIST, address) for address in ("10.0.0.8", "10.0.0.9")]
    assert [one.enter() is None for one in there] == [True, False], "no more of all together"
    here[0].leave()
    here[0].leave()
    assert there[1].enter() is None
    watches = [calls.of(anonymous.WATCH, "10.0.0.7") for _ in range(2)]
    assert [one.enter() is None for one in watches] == [True, False]


async def test_a_stream_of_a_stranger_ends_after_some_minutes(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anonymous, "STREAM_S", 0.1)
    ended, go = asyncio.Event(), asyncio.Event()

    class Endless(grpc.GenericRpcHandler):
        def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            async def stream(_: Any, __: Any) -> AsyncIterator[bytes]:
                try:
                    yield b"SERVING"
                    await go.wait()
                    yield b"NOT_SERVING"
                finally:
                    ended.set()

            return grpc.unary_stream_rpc_method_handler(stream)

    async with serving(door, generic=Endless()) as channel:
        metadata = (("authorization", f"Bearer {await tokens_of_somebody(door)}"),)
        known = channel.unary_stream(anonymous.WATCH)(b"", metadata=metadata, timeout=60)
        assert await known.read() == b"SERVING"
        stranger = channel.unary_stream(anonymous.WATCH)(b"", timeout=60)
        assert await stranger.read() == b"SERVING"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stranger.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(ended.wait(), 60)
        go.set()
        assert await known.read() == b"NOT_SERVING", "of somebody known it goes on"


async def test_answers_that_are_not_taken_count_as_open(door: Door) -> None:
    """A client without room for one leaves it in our memory, as long as it likes."""
    method = "/nsml.v1.SessionService/GetSession"

    class Long(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: Any) -> Any:
            async def answer(_: Any, __: Any) -> bytes:
                return bytes(1 << 20)

            return grpc.unary_unary_rpc_method_handler(answer)

    async with serving(door, generic=Long()) as channel:
        tokens = await tokens_of_everybody(door)
        mine, theirs = str(tokens["member"]), str(tokens["other"])
        _, writer = await asyncio.open_connection("127.0.0.1", vars(channel)["port"])
        http = h2.connection.H2Connection()
        http.local_settings.initial_window_size = 0
        http.initiate_connection()
        for _ in range(MOST_REQUESTS):
            stream = http.get_next_available_stream_id()
            head = {
                ":method": "POST",
                ":scheme": "http",
                ":authority": "x",
                ":path": method,
                "content-type": "application/grpc",
                "te": "trailers",
                "authorization": f"Bearer {mine}",
            }
            http.send_headers(stream, list(head.items()))
            http.send_data(stream, bytes(5), end_stream=True)
        writer.write(http.data_to_send())
        await writer.drain()
        try:
            while await outcome_within(channel, method, mine, 0.3) != "waits":
                pass  # until all of them have arrived
            assert (await outcome(channel, method, theirs)).startswith("open")
        finally:
            writer.close()
        assert (await outcome(channel, method, mine)).startswith("open")


class Reader:
    """A call that reads with an `_Ending`: what became of it, by one who ends it and one who cancels it."""

    def __init__(self) -> None:
        self._begun: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> str:
        ending = _Ending()
        self._begun.set_result(ending)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ending.is_cause():
                await asyncio.sleep(0)  # it goes on
                return "late"
            raise
        return "read"

    async def end(self) -> None:
        (await self._begun).begin()

    async def outcome(self) -> str:
        try:
            return await self.task
        except asyncio.CancelledError:
            return "cancelled"


async def test_what_ends_a_call_is_told_from_what_cancels_it() -> None:
    late, twice, cancelled, both = Reader(), Reader(), Reader(), Reader()
    await late.end()
    for _ in range(2):  # its time is up, and others need its room
        await twice.end()
    await asyncio.sleep(0)
    cancelled.task.cancel()
    await both.end()
    both.task.cancel()
    outcomes = [await one.outcome() for one in (late, twice, cancelled, both)]
    assert outcomes == ["late", "late", "cancelled", "cancelled"]
