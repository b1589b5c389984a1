"""`nsml up --etcd`: a platform whose live records are in a cluster that others run."""

from __future__ import annotations

from pathlib import Path

from tests.integration.machine import Machine, machine
from tests.integration.test_etcd_access import Authority, tls_etcd

__all__ = ["machine"]


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
