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
printf '{second}' >> {folder}/resolv.conf
mount --bind {folder}/resolv.conf /etc/resolv.conf
ip link set lo up
ip link add out type veth peer name nowhere
ip link set out up; ip link set nowhere up
ip address add 10.9.9.9/24 dev out
ip neigh add 10.9.9.1 lladdr 00:11:22:33:44:55 dev out
ip route add default via 10.9.9.1
"""


LIVING = """
import socket
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.bind(("10.9.9.9", 53))
print("ready", flush=True)
while True:
    query, asker = resolver.recvfrom(512)
    end = 12
    while query[end]:
        end += query[end] + 1
    question = query[12 : end + 5]
    is_a = question[-4:-2] == b"\\0\\1"
    counts = b"\\0\\1" + (b"\\0\\1" if is_a else b"\\0\\0") + b"\\0" * 4
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + socket.inet_aton("10.9.9.9") if is_a else b""
    resolver.sendto(query[:2] + b"\\x81\\x80" + counts + question + answer, asker)
"""
"""A resolver that knows one address for all names."""


ASK = """
import os, sys
from nsml.client.errors import ClientError
from nsml.client.trust import fetch_authority
from nsml.common.resolving import bound_resolvers
bound_resolvers(os.environ)
try:
    fetch_authority("gpu.lab.example", 1)
except ClientError as error:
    sys.exit(f"{error}: {error.why}")
"""


def asked(folder: Path, second: str = "", before: str = "") -> str:
    """What a command says, and what the look-up of an authority says, in such a network."""
    nsml = Path(sys.executable).parent / "nsml"
    script = (
        NETWORK.format(folder=folder, second=second)
        + before
        + f"{nsml} ps || true\n{sys.executable} -c '{ASK}' || true\n"
    )
    done = subprocess.run(
        [*_UNSHARE, "bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "NSML_CONFIG_DIR": str(folder / "config"),
            "NSML_SERVER": "gpu.lab.example:18553",
            "NSML_TOKEN": "nsml_" + "x" * 43,
        },
    )
    return done.stderr


def test_no_command_waits_for_it_longer_than_a_moment(tmp_path: Path) -> None:
    """What each says shows who gave up: we, after two seconds, or the resolver, after ten and more."""
    said = asked(tmp_path)
    assert "the control plane at gpu.lab.example:18553 does not answer" in said
    assert said.count("no resolver answers for gpu.lab.example") == 2
    # That is what is said where the resolver itself gives up.
    assert "Timeout while contacting DNS servers" not in said


def test_a_living_resolver_behind_it_is_asked_in_time(tmp_path: Path) -> None:
    (tmp_path / "resolver.py").write_text(LIVING)
    start = f"{sys.executable} {tmp_path}/resolver.py > {tmp_path}/out & trap 'kill $!' EXIT\n"
    wait = f"until [ -s {tmp_path}/out ]; do sleep 0.02; done\n"
    said = asked(tmp_path, "nameserver 10.9.9.9\\n", start + wait)
    assert "no resolver answers" not in said
    assert said.count("refuse") == 2, said
