"""Several control planes of one platform: whole programs on a real etcd, PostgreSQL and S3 server."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.access.files import write_private
from controlplane.access.platform_keys import KEY_FILE, read_platform_key
from controlplane.store.etcd_process import EtcdProcess
from controlplane.store.open import open_store
from controlplane.stored import etcd_codec
from nsml.client.trust import (
    NodeFiles,
    digest_of,
    needs_renewal,
    renew_when_due,
    signing_request,
)
from nsml.common.clock import SystemClock
from tests.integration.machine import Machine, until
from tests.support.living_folders import files_below
from tests.support.s3 import KEYS, S3Server
from tests.support.shared_platform import ControlPlaneProcess, Shared, shared

__all__ = ["shared"]

LISTENERS = {"listen": "127.0.0.1:0", "listen_agents": "127.0.0.1:0", "hosts": ["127.0.0.1"]}


@contextlib.contextmanager
def two(
    shared: Shared, tmp_path: Path, **changes: str
) -> Iterator[tuple[ControlPlaneProcess, ControlPlaneProcess]]:
    """Two control planes that begin at the same moment, with the same platform.key."""
    key = secrets.token_bytes(32).hex().encode() + b"\n"
    for name in ("first", "second"):
        write_private(tmp_path / name / "d" / KEY_FILE, key)
    with (
        shared.control_plane(tmp_path / "first", **LISTENERS, **changes) as first,
        shared.control_plane(tmp_path / "second", **LISTENERS, **changes) as second,
    ):
        yield first, second


class LongAgo(SystemClock):
    """70 days."""

    def time(self) -> float:
        return super().time() - 70 * 86_400


async def make_old(shared: Shared, data: Path, files: NodeFiles) -> None:
    """Give a node a certificate of 70 days ago, which the platform's authority made."""
    key = read_platform_key(data / KEY_FILE, secrets.token_bytes)
    root, where = shared.settings["etcd_root"], shared.settings["coordination"]
    async with open_store(where, clock=SystemClock(), root=root) as store:
        item = await store.get(etcd_codec.PLATFORM_KEYS)
    keys = key.open(item.value, (data / "cluster").read_text().strip())
    signed = keys.open_authority(LongAgo()).sign_node("gpu-7", signing_request(files.key, "gpu-7"))
    files.certificate.write_bytes(signed.certificate)


async def test_two_that_begin_at_once_are_one_platform(shared: Shared, tmp_path: Path) -> None:
    with two(shared, tmp_path) as (first, second):
        assert first.ready()["cluster_id"] == second.ready()["cluster_id"]
        digests = {digest_of((one.data / "ca.pem").read_text()) for one in (first, second)}
        assert len(digests) == 1
        for one in (first, second):
            assert not (one.data / "ca.key").exists()
            assert not (one.data / "secrets.key").exists()
            assert all(file.stat().st_mode & 0o077 == 0 for file in one.data.iterdir())
        members = json.loads(first.nsml("status", "-j"))
        assert {"first", "second"} <= set(json.dumps(members).replace('"', " ").split())
        # What is written at one is read at the other.
        first.nsml("admin", "user", "add", "lee")
        until(lambda: "lee" in second.nsml("admin", "user", "ls", "-o", "name"))
        # A join token of the first is good at the second, which signs the node's certificate; the
        # agent shows it to whoever leads. Each of them renews it.
        token = json.loads(first.nsml("admin", "join-token", "-j"))["token"]
        node = Machine(tmp_path / "node")
        join = ("--name", "gpu-7", "--simulate-gpus", "1")
        try:
            joined = node.nsml("join", second.ready()["listen"], *join, "--token", "-", stdin=token)
            assert joined.returncode == 0, joined.stderr
            until(lambda: "gpu-7" in first.nsml("node", "ls", "-o", "name"))
            assert node.nsml("down").returncode == 0
            files = NodeFiles.within(node.data / "trust")
            for one in (first, second):
                await make_old(shared, first.data, files)
                now = SystemClock().time()
                assert await renew_when_due(one.ready()["listen_agents"], "gpu-7", files, now=now)
                assert not needs_renewal(files.certificate, now=now)
        finally:
            node.nsml("down", "-y")
        assert node.leftovers() == []


def test_secrets_get_another_key_while_all_run(shared: Shared, tmp_path: Path) -> None:
    with two(shared, tmp_path) as (first, second):
        first.nsml("secret", "set", "OLD", stdin="value")
        renewed = second.program("--secrets-key", "renew")
        assert renewed.returncode == 0, renewed.stderr
        until(lambda: "secrets.renewed" in first.said())
        second.nsml("secret", "set", "NEW", stdin="value")
        until(lambda: second.program("--secrets-key", "forget").returncode == 0)
        assert "OLD" in first.nsml("secret", "ls")
        assert "value" not in first.said() + second.said()
        first.process.kill()
        first.process.wait()
    with shared.control_plane(tmp_path / "first") as again:
        again.ready()
    alone = {**shared.settings, "history": "", "objects": ""}
    with Shared(alone, dict(KEYS)).control_plane(tmp_path / "other") as refusing:
        assert "was made with PostgreSQL and shared objects" in refusing.refused()


def test_a_mounted_folder_serves_as_well(shared: Shared, tmp_path: Path) -> None:
    """What one has stored, the other has; and what a killed one began is in nobody's way."""
    mounted, digits = tmp_path / "mounted with all", tmp_path / "digits"
    for folder in (mounted, digits):
        folder.mkdir()
    (digits / "a.txt").write_text("one\n")
    shared.settings["objects"] = mounted.as_uri()
    with two(shared, tmp_path) as (first, second):
        first.nsml("dataset", "push", "digits", str(digits))
        first.process.kill()
        first.process.wait()
        until(lambda: "digits" in second.nsml("dataset", "ls", "-o", "name"))
        stored = {file: file.stat().st_mtime_ns for file in files_below(mounted / "packs")}
        second.nsml("dataset", "push", "again", str(digits))
        now = {file: file.stat().st_mtime_ns for file in files_below(mounted / "packs")}
        assert now == stored, "nothing was sent that is there"
        with shared.control_plane(tmp_path / "first") as again:
            again.ready()
    local = tmp_path / "only here"
    shutil.copytree(mounted, local)
    mark = (local / "mark").read_text().partition("/")[0]
    (local / "mark").write_text(f"{mark}/of-a-folder-that-was-begun-at-the-same-moment")
    shared.settings["objects"] = local.as_uri()
    with shared.control_plane(tmp_path / "second") as refusing:
        assert "one that only this machine sees" in refusing.refused()


def test_parts_that_do_not_belong_together_are_refused(
    shared: Shared, tmp_path: Path, s3: S3Server, etcd_server: EtcdProcess
) -> None:
    with shared.control_plane(tmp_path / "first") as first:
        cluster = first.ready()["cluster_id"]
        key = {"platform_key": first.data / KEY_FILE}
        local = tmp_path / "local"
        local.mkdir()
        cases = [
            ({}, "copy platform.key from another control plane"),
            ({**key, "etcd_root": "emptied/"}, "it was emptied, or is another one"),
            ({**key, "objects": f"s3://{s3.bucket()}"}, "it is empty, not mounted, or another"),
            ({**key, "objects": local.as_uri()}, "it is empty, not mounted, or another one"),
            ({**key, "objects": f"file://{tmp_path}/nowhere"}, "is it mounted?"),
            ({**key, "objects": "s3://nobodys-bucket"}, "no such bucket"),
            ({**key, "history": ""}, "nothing is moved by changing them"),
            ({**key, "s3_endpoint": "http://203.0.113.1"}, "not encrypted: use https"),
        ]
        for number, (changes, words) in enumerate(cases):
            with shared.control_plane(tmp_path / f"n{number}", **changes) as refusing:
                said = refusing.refused()
            assert words in said
            assert "Traceback" not in refusing.said()
            left = {file.name for file in refusing.data.iterdir()} - {"lock", "history.db"}
            assert not {name for name in left if name.startswith("cluster")}
        with shared.control_plane(tmp_path / "second", **key) as second:
            assert second.ready()["cluster_id"] == cluster


def test_no_password_is_shown(shared: Shared, tmp_path: Path) -> None:
    """That of PostgreSQL is in the URL here, which is in the settings' file alone."""
    password = urlsplit(shared.settings["history"]).password
    canaries = [password, KEYS["AWS_SECRET_ACCESS_KEY"]]
    with shared.control_plane(tmp_path / "first", log_level="debug") as first:
        first.ready()
        shown = first.nsml("status", "-j") + first.nsml("doctor", "node", "-j")
        command = Path(f"/proc/{first.process.pid}/cmdline").read_text()
        with shared.control_plane(tmp_path / "second", objects="s3://nobodys-bucket") as second:
            second.refused()
        with shared.control_plane(tmp_path / "third", history="") as third:
            third.refused()
        wrong = shared.settings["history"].replace(password, "wrong-" + password[::-1])
        with shared.control_plane(tmp_path / "fourth", history=wrong) as fourth:
            refusal = fourth.refused()
        canaries.append("wrong-" + password[::-1])
        assert "postgresql://" in refusal
        texts = [shown, command, (first.data / "ready.json").read_text()]
        texts += [one.said() for one in (first, second, third, fourth)]
        for text in texts:
            assert not any(canary in text for canary in canaries)
    machine = Machine(tmp_path / "machine")
    up = machine.nsml("up", "--no-agent", "--embedded", "--history", shared.settings["history"])
    assert up.returncode == 2
    assert "has a password in its URL" in up.stderr
    assert password not in up.stdout + up.stderr
    assert not (machine.data / "local.json").exists()
