"""Commands do not wait for a resolver that never answers: in a network in which packets to it vanish."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_UNSHARE = ["unshare", "--mount", "--net"]


def _can_make_namespaces() -> bool:
    return os.geteuid() == 0 and subprocess.run([*_UNSHARE, "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not _can_make_namespaces(), reason="root makes namespaces here alone"
)

NETWORK = """
set -e
printf 'nameserver 192.0.2.1\\n' > {folder}/resolv.conf
mount --bind {folder}/resolv.conf /etc/resolv.conf
ip link set lo up
ip link add out type veth peer name nowhere
ip link set out up; ip link set nowhere up
ip address add 10.9.9.9/24 dev out
ip neigh add 10.9.9.1 lladdr 00:11:22:33:44:55 dev out
ip route add default via 10.9.9.1
"""


ASK = """
import sys
from nsml.client.errors import ClientError
from nsml.client.trust import fetch_authority
try:
    fetch_authority("gpu.lab.example", 1)
except ClientError as error:
    sys.exit(f"{error}: {error.why}")
"""


def test_no_command_waits_for_it_longer_than_a_moment(tmp_path: Path) -> None:
    """What each says shows who gave up: we, after two seconds, or the resolver, after ten and more."""
    script = NETWORK.format(folder=tmp_path) + (
        f"{Path(sys.executable).parent}/nsml ps || true\n{sys.executable} -c '{ASK}' || true\n"
    )
    done = subprocess.run(
        [*_UNSHARE, "bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "NSML_CONFIG_DIR": str(tmp_path / "config"),
            "NSML_SERVER": "gpu.lab.example:18553",
            "NSML_TOKEN": "nsml_" + "x" * 43,
        },
    )
    assert "the control plane at gpu.lab.example:18553 does not answer" in done.stderr
    assert "no resolver answers for gpu.lab.example" in done.stderr
    # That is what is said where the resolver itself gives up.
    assert "Timeout while contacting DNS servers" not in done.stderr
