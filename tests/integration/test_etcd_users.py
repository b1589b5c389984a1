"""A whole control plane on a cluster of etcd with TLS, users and tokens that expire, by its settings."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cli.local.ports import Held
from controlplane.store.etcdpb import rpc_pb2 as pb
from tests.integration.machine import until
from tests.integration.test_etcd_access import Authority
from tests.support.etcd import require_etcd
from tests.support.said import last_line
from tests.support.shared_platform import ControlPlaneProcess, Shared

TOKEN_LIFE_S = 2
_REFUSED = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}


class GuardedCluster:
    """Three members that speak TLS and ask who calls; a user is somebody for two seconds."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "ours")
        self._folder = folder
        certificate, key = self.authority.issue("server")
        self._ports = Held()
        clients, peers = ([self._ports.free() for _ in range(3)] for _ in range(2))
        self.urls = [f"https://127.0.0.1:{port}" for port in clients]
        all_peers = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
        self._commands = [
            [
                str(require_etcd()), "--name", f"m{n}", "--data-dir", str(folder / f"m{n}"),
                "--listen-client-urls", url, "--advertise-client-urls", url,
                "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                "--initial-cluster", all_peers, "--initial-cluster-token", "users",
                "--cert-file", str(certificate), "--key-file", str(key),
                "--auth-token", self._tokens(), "--bcrypt-cost", "4",
                "--log-level", "error", "--logger", "zap",
            ]
            for n, (url, peer) in enumerate(zip(self.urls, peers, strict=True))
        ]  # fmt: skip
        self.members = [self._launch(n) for n in range(3)]

    def _tokens(self) -> str:
        """Signed tokens: every member knows them, and their life can be short."""
        key, public = self._folder / "jwt.key", self._folder / "jwt.pub"
        if not key.exists():
            pair = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            pem = serialization.Encoding.PEM
            key.write_bytes(
                pair.private_bytes(
                    pem,
                    serialization.PrivateFormat.TraditionalOpenSSL,
                    serialization.NoEncryption(),
                )
            )
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            public.write_bytes(pair.public_key().public_bytes(pem, form))
        return f"jwt,pub-key={public},priv-key={key},sign-method=RS256,ttl={TOKEN_LIFE_S}s"

    def _launch(self, number: int) -> subprocess.Popen[bytes]:
        with self._log(number).open("ab") as log:
            return subprocess.Popen(
                self._commands[number], cwd=self._folder, process_group=0, stdout=log, stderr=log
            )

    def _log(self, number: int) -> Path:
        return self._folder / f"m{number}.log"

    def remove(self) -> None:
        for number in range(3):
            self.kill(number)
        self._ports.close()

    def kill(self, number: int) -> None:
        self.members[number].kill()
        self.members[number].wait()

    def start(self, number: int) -> None:
        self.members[number] = self._launch(number)

    def call(self, name: str, user: str = "", password: str = "", token: str = "") -> bytes:
        """Auth/NAME: its requests have the two text fields of AuthenticateRequest."""
        credentials = grpc.ssl_channel_credentials(self.authority.pem)
        target = self.urls[0].removeprefix("https://")
        with grpc.secure_channel(target, credentials) as channel:
            method = channel.unary_unary(
                f"/etcdserverpb.Auth/{name}",
                request_serializer=pb.AuthenticateRequest.SerializeToString,
                response_deserializer=bytes,
            )
            metadata = (("token", token),) if token else ()
            request = pb.AuthenticateRequest(name=user, password=password)
            return bytes(method(request, timeout=20, wait_for_ready=True, metadata=metadata))

    def enable_users(self) -> None:
        for call in (
            ("UserAdd", "root", "first"),
            ("RoleAdd", "root"),
            ("UserGrantRole", "root", "root"),
            ("AuthEnable",),
        ):
            self._surely(lambda call=call: self.call(*call))  # type: ignore[misc]

    def change_password(self, before: str, after: str) -> None:
        def change() -> None:
            answer = pb.AuthenticateResponse.FromString(self.call("Authenticate", "root", before))
            self.call("UserChangePassword", "root", after, answer.token)

        self._surely(change)

    def _surely(self, work: Callable[[], object]) -> None:
        """Try until it is done: members that have not agreed on a leader, or on one anew, decide nothing.

        What was done behind a lost answer is refused then, and a token may end before its use.
        """

        def is_done() -> bool:
            for number, member in enumerate(self.members):
                assert member.poll() is None, (
                    f"etcd m{number} ended: {last_line(self._log(number))}"
                )
            try:
                work()
            except grpc.RpcError as error:
                return error.code() in _REFUSED  # type: ignore[attr-defined]
            return True

        until(is_done)


@contextmanager
def guarded_cluster(folder: Path) -> Iterator[GuardedCluster]:
    cluster = GuardedCluster(folder)
    try:
        cluster.enable_users()
        yield cluster
    finally:
        cluster.remove()


def works(plane: ControlPlaneProcess, user: str) -> None:
    """Something is written, and read by what follows the store.

    While the members elect another leader the store does not answer, as its users are told.
    """

    def is_there() -> bool:
        try:
            if user in plane.nsml("admin", "user", "ls", "-o", "name"):
                return True
            plane.nsml("admin", "user", "add", user)
        except AssertionError as refused:
            if not any(word in str(refused) for word in ("again in", "exists")):
                raise
        return False

    until(is_there)


def members_away(plane: ControlPlaneProcess) -> list[str]:
    """URLs of members of etcd that `nsml status` says are away."""
    shown = json.loads(plane.nsml("status", "-j", codes={0, 1}))["conditions"]
    return [one["subject"] for one in shown if one["name"] == "STORE_MEMBER_AWAY"]


async def test_tokens_end_members_die_and_the_password_changes(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    password.chmod(0o600)
    with guarded_cluster(tmp_path) as cluster:
        settings: dict[str, Any] = {
            "coordination": ",".join(cluster.urls),
            "etcd_ca": cluster.authority.path,
            "etcd_user": "root",
            "etcd_password_file": password,
        }
        platform = Shared(settings)
        with platform.control_plane(tmp_path / "a") as plane:
            plane.ready()
            works(plane, "u1")
            await asyncio.sleep(2 * TOKEN_LIFE_S)  # every token has ended, that of the watches too
            works(plane, "u2")
            cluster.kill(0)
            works(plane, "u3")
            until(lambda: members_away(plane) == [cluster.urls[0]])
            cluster.start(0)
            until(lambda: members_away(plane) == [])
            password.write_text("later-password\n")
            cluster.change_password("first", "later-password")
            await asyncio.sleep(2 * TOKEN_LIFE_S)
            works(plane, "u4")
            cluster.kill(1)
            works(plane, "u5")
            until(lambda: members_away(plane) == [cluster.urls[1]])
            assert plane.process.poll() is None
            said = plane.said()
            assert not any(word in said for word in ("first\n", "later-password", "Traceback"))
            cluster.start(1)
        with platform.control_plane(tmp_path / "a") as again:
            works(again, "u6")


@pytest.mark.parametrize(
    ("user", "password", "mode", "words"),
    [
        ("root", "wrong", 0o600, "refuses user root"),
        ("nobody", "first", 0o600, "refuses user nobody"),
        ("root", "first", 0o644, "may be read by others"),
        ("root", "", 0o600, "has no password"),
        ("root", None, 0o600, "has no password"),
    ],
)
def test_who_is_not_let_in_is_told(
    guarded: GuardedCluster, tmp_path: Path, user: str, password: str | None, mode: int, words: str
) -> None:
    file = tmp_path / "password"
    if password is not None:
        file.write_text(password)
        file.chmod(mode)
    settings = {
        "coordination": ",".join(guarded.urls),
        "etcd_ca": guarded.authority.path,
        "etcd_user": user,
        "etcd_password_file": file,
    }
    with Shared(settings).control_plane(tmp_path / "a") as plane:
        said = plane.refused()
    assert words in said
    assert not (password and f"{password}\n" in said)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    with guarded_cluster(tmp_path_factory.mktemp("guarded")) as cluster:
        yield cluster
