"""Jump hosts of two control planes: OpenSSH reaches sessions through both, also once the leader was killed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from controlplane.access.files import write_private
from tests.e2e.programs import wait_for
from tests.e2e.test_sh import unique
from tests.e2e.test_ssh import BROKEN, ends
from tests.integration.machine import Machine
from tests.integration.test_shared_platform import two
from tests.support.laptop import Laptop
from tests.support.shared_platform import shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.shared_platform import ControlPlaneProcess, Shared

__all__ = ["shared"]

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None and not os.environ.get("NSML_REQUIRE_SSH"),
    reason="there is no OpenSSH client (openssh-client)",
)


@contextmanager
def node_of(control_plane: ControlPlaneProcess, folder: Path) -> Iterator[None]:
    """A node that has joined; nothing of it is left."""
    token = json.loads(control_plane.nsml("admin", "join-token", "-j"))["token"]
    node = Machine(folder)
    join = ("join", control_plane.ready()["listen"], "--name", "gpu-7", "--simulate-gpus", "1")
    try:
        joined = node.nsml(*join, "--token", "-", stdin=token)
        assert joined.returncode == 0, joined.stderr
        yield
    finally:
        node.nsml("down", "-y")
    assert node.leftovers() == []


def jump_host(control_plane: ControlPlaneProcess) -> str:
    address: str = control_plane.ready()["listen_ssh"]
    return address


def leads(control_plane: ControlPlaneProcess) -> str:
    """The name of the leader."""
    name: str = wait_for(
        lambda: json.loads(control_plane.nsml("status", "-j"))["leader"], what="one leads"
    )
    return name


def lines_for_both(by: ControlPlaneProcess, other: ControlPlaneProcess, **environment: str) -> str:
    """What one control plane says for a machine without nsml, once it knows of the other one."""

    def lines() -> str:
        text = by.nsml("ssh-config", "--jump", **environment)
        return text if f"# or: ProxyJump {jump_host(other)}\n" in text else ""

    return wait_for(lines, what="both jump hosts are known")


def test_what_holds_at_one_holds_at_both_and_one_goes_on_alone(
    shared: Shared, tmp_path: Path
) -> None:
    with (
        two(shared, tmp_path, listen_ssh="127.0.0.1:0") as (first, second),
        node_of(second, tmp_path / "node"),
    ):
        leader, standby = (first, second) if leads(first) == "first" else (second, first)
        first.nsml("admin", "user", "add", "lee")
        token = tmp_path / "lee.token"
        write_private(token, first.nsml("admin", "user", "token", "lee").split()[-1].encode())
        of_lee = {"NSML_TOKEN_FILE": str(token)}
        lee = Laptop(tmp_path / "lee", lines_for_both(leader, standby, **of_lee))
        kim = Laptop(tmp_path / "kim", lines_for_both(standby, leader))
        run = ("run", "--no-code", "--argv", "-g", "0", "-c", "0.1", "--memory", "100M")
        name = first.nsml(*run, "-o", "name", "--", "sleep", "3600", **of_lee).strip()
        host = f"{first.nsml('getid', name).strip()}.nsml"
        leader.nsml("key", "add", lee.public_key, **of_lee)
        standby.nsml("key", "add", kim.public_key)
        ways = [("-J", jump_host(one), host) for one in (leader, standby)]
        through_standby = ways[1]
        wait_for(
            lambda: kim.run("ssh", *through_standby, "true").code == 0, what="its session runs"
        )

        with ExitStack() as held:
            lees, kims = (
                [held.enter_context(who.connected(*way, command="sleep 600")) for way in ways]
                for who in (lee, kim)
            )
            leader.nsml("admin", "user", "rm", "lee", "-y")
            assert [one.wait(60) for one in lees] == [BROKEN, BROKEN]
            assert [one.poll() for one in kims] == [None, None]
            standby.nsml("key", "rm", "kim", "-y")
            assert [one.wait(60) for one in kims] == [BROKEN, BROKEN]
        for who, way in itertools.product((lee, kim), ways):
            wait_for(
                lambda who=who, way=way: "Permission denied" in who.run("ssh", *way, "true").err,
                what="it knows the key no more",
            )

        leader.nsml("key", "add", kim.public_key)
        word = unique()
        with kim.connected(*through_standby, command=f"sleep {word}; true") as process:
            leader.process.kill()
            assert process.wait(60) == BROKEN
        ends("sleep", word)
        again = wait_for(
            lambda: kim.run("ssh", *through_standby, "echo again").out,
            what="the other one leads, and its jump host to the session",
        )
        assert again == "again\n"
