"""`nsml up --etcd`: a platform whose live records are in a cluster that others run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cli.local import processes
from controlplane.access.files import write_private
from tests.integration.machine import Machine, machine, until
from tests.integration.test_etcd_access import Authority, tls_etcd
from tests.integration.test_restored_copy import done
from tests.support.s3 import S3Server
from tests.support.shared_platform import Shared, shared

__all__ = ["machine", "shared"]


@pytest.mark.every_time
async def test_one_platform_has_an_etcd_cluster(machine: Machine, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue("client")
    second = Machine(tmp_path / "second")
    async with tls_etcd(tmp_path, authority) as url:
        etcd = ("--no-agent", "--etcd", url)
        keys = ("--etcd-cert", str(certificate), "--etcd-key", str(key))
        secured = (*etcd, "--etcd-ca", str(authority.path), *keys)
        unchecked = machine.nsml("up", *etcd)
        assert unchecked.returncode == 1
        assert "--etcd-ca" in unchecked.stderr
        up = machine.nsml("up", *secured)
        assert up.returncode == 0, up.stderr
        assert f"the etcd cluster at {url}" in up.stdout
        cluster = machine.ready()["cluster_id"]
        assert machine.nsml("admin", "user", "add", "lee").returncode == 0
        for _ in range(2):  # while the first one runs, and after
            refused = second.nsml("up", *secured)
            assert refused.returncode == 1
            assert "belongs to another data folder" in refused.stderr
            assert cluster in refused.stderr
            assert second.leftovers() == []
            assert not (second.data / "local.json").exists()
            assert machine.nsml("down").returncode == 0
        again = machine.nsml("up", "--no-agent")
        assert again.returncode == 0, again.stderr
        assert machine.ready()["cluster_id"] == cluster
        assert "lee" in machine.nsml("admin", "user", "ls", "-o", "name").stdout
        assert machine.nsml("down").returncode == 0
        elsewhere = second.nsml("up", "--no-agent", "--embedded")
        assert elsewhere.returncode == 0, elsewhere.stderr
        assert second.nsml("down").returncode == 0


def test_plain_text_to_another_machine_is_refused(machine: Machine) -> None:
    refused = machine.nsml("up", "--no-agent", "--etcd", "http://203.0.113.1:2379")
    assert refused.returncode == 1
    assert "not encrypted: use https" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert machine.up().returncode == 0, "what was tried in vain binds nobody"


def name_of(one: Machine) -> str:
    """Of its control plane, among all."""
    return one.ready()["member"]


def states(one: Machine) -> set[str]:
    """Of all sessions, as told there."""
    return {session["state"] for session in json.loads(done(one, "ps", "-a", "-j"))["items"]}


def told(shared: Shared, s3: S3Server, tmp_path: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """What `nsml up` is told of the parts of a shared platform, and its environment."""
    passwords = tmp_path / "pgpass"
    url = urlsplit(shared.settings["history"])
    passwords.write_text(f"*:*:*:{url.username}:{url.password}\n")
    passwords.chmod(0o600)
    place = f"{url.username}@{url.hostname}:{url.port}{url.path}?passfile={passwords}"
    parts = ("--etcd", shared.settings["coordination"], "--history", f"postgresql://{place}")
    root = {"NSML_CONTROLPLANE_ETCD_ROOT": shared.settings["etcd_root"]}
    return (*parts, "--objects", shared.settings["objects"]), {**s3.environment, **root}


def test_a_second_machine_joins_a_shared_platform(
    machine: Machine, tmp_path: Path, shared: Shared, s3: S3Server
) -> None:
    """`nsml up` on two of them, the second with a copy of the key; then as at first, without a word."""
    second, key = Machine(tmp_path / "second"), tmp_path / "platform.key"
    parts, elsewhere = told(shared, s3, tmp_path)
    with_all = ("--no-agent", *parts)
    own = ("--simulate-gpus", "1", "--listen", "127.0.0.1:0")
    up = machine.nsml("up", *own, *parts, **elsewhere)
    assert up.returncode == 0, up.stderr
    made = machine.data / "controlplane" / "platform.key"
    assert f"further control planes need a copy of {made}" in up.stderr
    refused = second.nsml("up", *with_all, **elsewhere)
    assert refused.returncode == 1
    assert "copy platform.key from another control plane" in refused.stderr
    assert second.leftovers() == []
    write_private(key, made.read_bytes())
    try:
        joined = second.nsml("up", *with_all, "--platform-key", str(key), **elsewhere)
        assert joined.returncode == 0, joined.stderr
        assert f"objects        {shared.settings['objects']}" in joined.stdout
        assert machine.nsml("admin", "user", "add", "lee").returncode == 0
        until(lambda: "lee" in second.nsml("admin", "user", "ls", "-o", "name").stdout)
        other = second.nsml("up", "--history", "postgresql:///other", **elsewhere)
        assert other.returncode == 6
        assert "runs with another --history" in other.stderr
        # The work of a platform that goes on is none of this machine's business.
        run = machine.nsml("run", "--argv", "--", "/bin/sleep", "600", cwd=second.data)
        assert run.returncode == 0, run.stderr
        until(lambda: states(machine) == {"RUNNING"})
        down = second.nsml("down")
        assert down.returncode == 0, down.stderr
        assert f"goes on at {name_of(machine)} (" in down.stderr
        assert down.stdout == "nsml is down on this machine\n"
        assert states(machine) == {"RUNNING"}
        moved = second.nsml("up", "--objects", f"s3://{s3.bucket()}", "--no-agent", **elsewhere)
        assert moved.returncode == 1
        assert "it is empty, not mounted, or another one" in moved.stderr
        # Without --listen its agent has no certificate, and the leader's listener asks for one: it is relayed.
        node = {"NSML_CONTROLPLANE_NODE": "second", "NSML_AGENT_NODE": "second"}
        again = second.nsml("up", "--simulate-gpus", "1", **elsewhere, **node)
        assert again.returncode == 0, again.stderr
        assert second.ready()["cluster_id"] == machine.ready()["cluster_id"]
        refused = machine.nsml("down")
        assert "add -y, or --keep-sessions" in refused.stderr
        assert "  1 session runs on this machine\n" in refused.stderr
        assert f"goes on at {name_of(second)} (" in refused.stderr
        assert machine.nsml("down", "-y").returncode == 0
        until(lambda: states(second) == {"STOPPED"})
    finally:
        second.nsml("down", "-y")
    assert second.leftovers() == []


def leader(at: Machine) -> object:
    """Who leads, as told there."""
    return json.loads(at.nsml("status", "-j").stdout or "{}").get("leader")


def is_heard(at: Machine) -> bool:
    """Whether the one node is heard by who leads, as told there."""
    nodes = json.loads(at.nsml("node", "ls", "-j").stdout or '{"items": []}')["items"]
    return [node["state"] for node in nodes] == ["READY"]


def test_an_agent_goes_on_when_the_control_plane_of_its_machine_is_killed(
    machine: Machine, tmp_path: Path, shared: Shared, s3: S3Server
) -> None:
    """Its node was one with a token alone, as before other machines were served, and keeps its name."""
    second = Machine(tmp_path / "second")
    parts, elsewhere = told(shared, s3, tmp_path)
    listen = ("--listen", "127.0.0.1:0")
    up = machine.nsml("up", "--simulate-gpus", "1", *parts, **elsewhere)
    assert up.returncode == 0, up.stderr
    made = machine.data / "controlplane" / "platform.key"
    try:
        run = machine.nsml("run", "--argv", "--", "/bin/sleep", "600", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        until(lambda: states(machine) == {"RUNNING"})
        assert machine.nsml("down", "--keep-sessions").returncode == 0
        up = machine.nsml("up", *listen, **elsewhere)
        assert up.returncode == 0, up.stderr
        key = ("--platform-key", str(made))
        up = second.nsml("up", "--no-agent", *listen, *parts, *key, **elsewhere)
        assert up.returncode == 0, up.stderr
        log = machine.data / "agent.log"
        until(lambda: second.ready()["listen_agents"] in log.read_text())
        member = name_of(second)
        processes.signal_program(machine.program(), signal.SIGKILL)
        until(lambda: leader(second) == member and is_heard(second))
        assert states(second) == {"RUNNING"}
        (name,) = second.nsml("ps", "-o", "name").stdout.split()
        assert second.nsml("stop", name).returncode == 0
        until(lambda: states(second) == {"STOPPED"})
        again = machine.nsml("up", **elsewhere)
        assert again.returncode == 0, again.stderr
        until(lambda: is_heard(machine))
    finally:
        machine.nsml("down", "-y")
        second.nsml("down", "-y")
    assert second.leftovers() == []
