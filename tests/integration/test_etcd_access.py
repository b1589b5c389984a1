"""Users, tokens that expire, and mutual TLS, on a real etcd."""

import asyncio
import datetime as dt
import ipaddress
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.local.ports import Held
from controlplane.store import etcd_members
from controlplane.store.etcd import EtcdStore
from controlplane.store.etcd_members import Login, Tls
from controlplane.store.etcd_process import EtcdProcess
from controlplane.store.etcdpb import rpc_pb2 as pb
from controlplane.store.interface import StoreRefused, StoreUnavailable
from nsml.common.clock import SystemClock
from tests.contract.store_engines import put, take, told, until
from tests.support.etcd import PATIENCE_S, etcd_in, require_etcd

CLOCK = SystemClock()
ROOT = Login(user="root", password="correct")


async def enable_users(endpoint: str) -> None:
    """Make a user root and switch access control on.

    AuthenticateRequest has the two text fields that these requests have too.
    """
    async with grpc.aio.insecure_channel(endpoint.replace("unix://", "unix:")) as channel:
        for call, first, second in (
            ("UserAdd", "root", "correct"),
            ("RoleAdd", "root", ""),
            ("UserGrantRole", "root", "root"),
            ("UserAdd", "guest", "guest"),
            ("AuthEnable", "", ""),
        ):
            method = channel.unary_unary(
                f"/etcdserverpb.Auth/{call}",
                request_serializer=pb.AuthenticateRequest.SerializeToString,
                response_deserializer=bytes,
            )
            await method(pb.AuthenticateRequest(name=first, password=second), timeout=PATIENCE_S)


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[EtcdProcess]:
    process = etcd_in(folder / "etcd")
    process.start()
    try:
        await process.ready(PATIENCE_S)
        await enable_users(process.endpoint)
        yield process
    finally:
        await process.stop()


async def restart(process: EtcdProcess) -> None:
    """Kill and start the server, which forgets every token it has given out."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)

    async def is_dead() -> bool:
        return process.pid is None

    await until(is_dead)
    process.start()
    await process.ready(PATIENCE_S)


async def test_a_user_works_on_after_the_server_has_forgotten_the_token(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as process,
        # A server that has just started elects itself first, and takes its time over a password.
        EtcdStore([process.endpoint], clock=CLOCK, login=ROOT, deadline_s=PATIENCE_S) as store,
        asyncio.timeout(4 * PATIENCE_S),
    ):
        start = await put(store, "a", b"1")
        lease = await store.grant(60)
        watching = asyncio.create_task(take(store, "a", start, 2))
        await restart(process)
        assert (await store.get("a")) is not None
        await restart(process)
        await put(store, "a", b"2", lease.id)
        assert [told(batch.events) for batch in await watching] == [[("a", b"1")], [("a", b"2")]]
        await restart(process)
        await store.keep_alive(lease)
        await restart(process)
        assert told((await take(store, "a", start, 1))[0].events) == [("a", b"1")]


@pytest.mark.parametrize("login", [None, Login(user="root", password="wrong")])
async def test_strangers_are_refused(tmp_path: Path, login: Login | None) -> None:
    async with guarded(tmp_path) as process:
        with pytest.raises(StoreRefused):
            await EtcdStore([process.endpoint], clock=CLOCK, login=login).__aenter__()


async def test_a_user_without_rights_is_refused(tmp_path: Path) -> None:
    guest = Login(user="guest", password="guest")
    async with guarded(tmp_path) as process:
        with pytest.raises(StoreRefused):
            await EtcdStore([process.endpoint], clock=CLOCK, login=guest).__aenter__()


def test_a_password_is_not_shown() -> None:
    assert "correct" not in repr(ROOT)


# TLS


class Authority:
    """A certificate authority made for one test."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key, is_ca=True)
        self.path = folder / f"{name}.pem"
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        self.path.write_bytes(self.pem)

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if not is_ca:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, is_ca=False)
        paths = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        paths[1].chmod(0o600)
        return paths


@asynccontextmanager
async def tls_etcd(folder: Path, authority: Authority) -> AsyncIterator[str]:
    """An etcd that speaks only to holders of a certificate of `authority`."""
    certificate, key = authority.issue("server")
    ports = Held()
    url, peer = f"https://127.0.0.1:{ports.free()}", "unix://localhost:2"
    process = subprocess.Popen(  # noqa: ASYNC220 - ended below, whatever the loop does
        [
            require_etcd(), f"--data-dir={folder / 'data'}", "--log-level=error", "--logger=zap",
            f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}", f"--cert-file={certificate}",
            f"--key-file={key}", "--client-cert-auth", f"--trusted-ca-file={authority.path}",
        ],
        cwd=folder, process_group=0, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield url
    finally:
        process.kill()
        process.wait()
        ports.close()


async def test_mutual_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Why it is not let in a store asks once its own time is up: a busy server answers later than that.
    monkeypatch.setattr(etcd_members, "_OBSTACLE_S", PATIENCE_S)
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    certificate, key = (path.read_bytes() for path in ours.issue("client"))
    tls = Tls(ca=ours.pem, certificate=certificate, key=key)
    async with tls_etcd(tmp_path, ours) as url:
        async with EtcdStore([url], clock=CLOCK, tls=tls, deadline_s=PATIENCE_S) as store:
            start = await put(store, "a", b"1")
            async with asyncio.timeout(60), aclosing(store.watch("a", start)) as batches:
                assert told((await anext(batches)).events) == [("a", b"1")]
        stranger, stranger_key = (path.read_bytes() for path in other.issue("stranger"))
        for refused, advice in (
            (Tls(ca=ours.pem), "etcd_certificate"),
            (Tls(ca=ours.pem, certificate=stranger, key=stranger_key), "etcd_certificate"),
            (Tls(ca=other.pem, certificate=certificate, key=key), "etcd_ca"),
        ):
            with pytest.raises(StoreRefused, match=advice):
                await EtcdStore([url], clock=CLOCK, tls=refused, deadline_s=0.3).__aenter__()
        plain = url.replace("https", "http")
        with pytest.raises(StoreUnavailable):
            await EtcdStore([plain], clock=CLOCK, deadline_s=0.3).__aenter__()
    assert "PRIVATE" not in repr(tls)
