"""deploy/README.md is walked as it stands: its lines run in namespaces in which its paths and addresses are free.

Left out are the lines that install packages and those to systemd, which does not run there: what its units start
is started by their own lines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.etcd import require_etcd

ROOT = Path(__file__).parents[2]
README = (ROOT / "deploy/README.md").read_text()
BIN = Path(sys.executable).parent


_UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork"]


def _can_make_namespaces() -> bool:
    return os.geteuid() == 0 and subprocess.run([*_UNSHARE, "true"], check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(not _can_make_namespaces(), reason="root makes namespaces here alone"),
]

_LEFT_OUT = re.compile(r"^(apt-get|python3 -m venv|/opt/nsml/bin/pip|systemctl|install -m 644) ")
_MACHINE = """
set -eu
ip link set lo up
for folder in /opt /var/lib; do mount -t tmpfs tmpfs $folder; done
cp -a /etc {scratch}/etc && mount --bind {scratch}/etc /etc && rm -rf /etc/nsml
mkdir -p /opt/nsml && ln -s {bin} /opt/nsml/bin
"""


def block(heading: str, first: str) -> str:
    """The block of the README under a heading that begins with these words; without what is left out."""
    part = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    texts = re.findall(r"^```\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    found = next(text for text in texts if text.startswith(first))
    return "".join(line for line in found.splitlines(True) if not _LEFT_OUT.match(line))


def started_by(unit: str) -> str:
    text = (ROOT / "deploy/systemd" / unit).read_text()
    return next(line for line in text.splitlines() if line.startswith("ExecStart="))[10:]


def walk(script: str, scratch: Path) -> str:
    """Run a script on a machine of its own; all that it started ends with it. Gives its output."""
    whole = _MACHINE.format(scratch=scratch, bin=BIN) + script
    run = subprocess.run(
        [*_UNSHARE, "--kill-child", "--mount-proc", "bash", "-c", whole],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "NSML_CONFIG_DIR": str(scratch / "config")},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


_WAIT_FOR = """
wait_for() { for _ in $(seq 600); do "$@" && return; sleep 0.1; done; cat LOG >&2; return 1; }
"""


def test_one_control_plane_is_set_up_as_it_says(tmp_path: Path) -> None:
    said = walk(
        block("The control plane", "useradd")
        + _WAIT_FOR.replace("LOG", str(tmp_path / "log"))
        + f"{started_by('nsml-controlplane.service')} 2> {tmp_path}/log &\n"
        + "wait_for test -e /var/lib/nsml/controlplane/ready.json\n"
        + block("The control plane", "export NSML_SERVER")
        + "/opt/nsml/bin/nsml status -j\ncat /var/lib/nsml/controlplane/ready.json\n",
        tmp_path,
    )
    made, token, join_token, status, ready = said.splitlines()
    assert "kim" in made
    assert token.startswith("nsml_")
    assert re.fullmatch(r"nsml_\S+\.[0-9a-f]{64}", join_token)
    assert json.loads(status)["conditions"] == []
    assert json.loads(ready)["listen"] == "gpu.lab:18553"


@pytest.mark.slow
def test_a_cluster_of_etcd_is_set_up_as_it_says(tmp_path: Path) -> None:
    """Its certificates are made as docs/control-planes.md says; each member has the README's file with its own
    name and address, and a network of its own: etcd compares where a peer calls from with its certificate."""
    require_etcd()
    page = (ROOT / "docs/control-planes.md").read_text()
    issue = re.search(r"^umask 077\n.*?^issue etcd-1 ", page, re.MULTILINE | re.DOTALL)
    assert issue
    files = block("The control plane", "install -d /etc/nsml")
    made = issue[0].removesuffix("issue etcd-1 ")
    members = ""
    for number in (1, 2, 3):
        members += f"""
issue etcd-{number} IP:10.0.0.{number}
sed -e '/^initial-cluster:/!s/etcd-1/etcd-{number}/; /^initial-cluster:/!s/10\\.0\\.0\\.1/10.0.0.{number}/' \\
    -e 's#/etc/nsml/etcd\\.#/etc/nsml/etcd-{number}.#g; s#/var/lib/nsml-etcd#/var/lib/nsml-etcd-{number}#' \\
    /etc/nsml/etcd.yml > /etc/nsml/etcd-{number}.yml
ip netns add etcd-{number}
ip link add port{number} up master lan type veth peer name lan netns etcd-{number}
ip -n etcd-{number} link set lo up
ip -n etcd-{number} link set lan up
ip -n etcd-{number} address add 10.0.0.{number}/24 dev lan
ip netns exec etcd-{number} {started_by("nsml-etcd.service").replace("etcd.yml", f"etcd-{number}.yml")} > {tmp_path}/log 2>&1 &
"""
    said = walk(
        files
        + "cd /etc/nsml\n"
        + made
        + "cp ca.pem etcd-ca.pem; issue etcd-client DNS:etcd-client\n"
        + "mount -t tmpfs tmpfs /run; ip link add lan up type bridge\n"
        + "ip address add 10.0.0.11/24 dev lan\n"
        + members
        + _WAIT_FOR.replace("LOG", str(tmp_path / "log"))
        + "healthy() { curl -sf --cacert ca.pem --cert etcd-client.pem --key etcd-client.key"
        + " https://10.0.0.3:2379/health; }\nwait_for healthy\n"
        + "useradd --system nsml; cp ca.pem db-ca.pem; cp ca.pem minio-ca.pem\n"
        + "echo db.lab:5432:nsml:nsml:PASSWORD > pgpass; echo '[default]' > s3.credentials\n"
        + block("Three control planes", "cat > /etc/nsml/controlplane.toml")
        + "echo; /opt/nsml/bin/nsml-controlplane --check --config controlplane.toml || true\n",
        tmp_path,
    )
    health, *checked = said.splitlines()
    assert json.loads(health)["health"] == "true"
    found = {line.split()[1]: line.split()[0] for line in checked}
    # PostgreSQL and the bucket are on machines that are not there.
    assert {name for name, grade in found.items() if grade == "bad"} == {"history", "objects"}
    assert found["coordination"] == "ok"
    assert found["etcd_certificate"] == found["listen"] == "ok"
