"""`nsml sh` from another machine than the node's: its bytes pass by the relay, whatever dies in the middle."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from bench.platform import PROGRAMS
from tests.e2e.platforms import user_of
from tests.e2e.programs import wait_for
from tests.e2e.test_sh import Endless, begun, code, pids, unique
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["code"]

BOOT_ID = "/proc/sys/kernel/random/boot_id"
ELSEWHERE = "00000000-0000-0000-0000-000000000000\n"


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=1, options=["--listen", "127.0.0.1:0"]) as running:
        yield running


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Runs a client as if on another machine: one of another boot id."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("mount namespaces need root, and util-linux")
    file = tmp_path_factory.mktemp("away") / "boot_id"
    file.write_text(ELSEWHERE)
    script = f'mount --bind {file} {BOOT_ID} && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, "sh")


def relay_of(platform: Platform) -> psutil.Process | None:
    """The relay of the platform's control plane, while it runs."""
    children = psutil.Process(platform.pid("controlplane")).children()
    found = [one for one in children if "controlplane.relay.main" in one.cmdline()]
    return found[0] if found else None


def is_relayed(platform: Platform, client: int) -> bool:
    """Whether a client is connected to the relay."""
    port = int(platform.ready("controlplane")["listen_relay"].rpartition(":")[2])
    connections = psutil.Process(client).net_connections("tcp")
    return any(one.raddr and one.raddr.port == port for one in connections)


@contextmanager
def relayed(
    platform: Platform,
    away: tuple[str, ...],
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """`nsml sh ARGUMENTS` from elsewhere by the relay, and its first byte; gone at the end.

    On a busy machine one may find the relay too slow, and take the other way.
    """

    def begun() -> tuple[subprocess.Popen[bytes], bytes] | None:
        process = subprocess.Popen(
            [*away, str(PROGRAMS / "nsml"), "sh", *arguments],
            env={**platform.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdout is not None
        first = process.stdout.read(1)
        assert first, errors_of(process)
        if is_relayed(platform, process.pid):
            return process, first
        process.kill()
        process.communicate()
        return None

    process, first = wait_for(begun, what="one takes the relay")
    try:
        yield process, first
    finally:
        process.kill()
        process.communicate()


@contextmanager
def endless(
    platform: Platform, away: tuple[str, ...], session: str, **options: Mapping[str, str]
) -> Iterator[Endless]:
    """In the middle of what never ends, which passes by the relay."""
    word = unique()
    with relayed(platform, away, session, "--", "yes", word, **options) as (process, first):
        made = Endless(process, word, first)
        wait_for(lambda: made.came > 1 << 20, what="its output comes")
        yield made
    wait_for(lambda: not pids(*made.command), what="the program is gone")


def errors_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def test_a_reader_that_stops_gets_all_bytes_and_the_exit_code(
    platform: Platform, code: Path, away: tuple[str, ...]
) -> None:
    session = begun(platform, code, "-g", "0")
    last = 20_000_000  # 169 MB: on the way, the buffers of each connection may grow to 36
    expected = subprocess.run(["seq", "1", str(last)], capture_output=True, check=True).stdout
    script = f"seq 1 {last}; exit 7"
    with relayed(platform, away, session, "--", "sh", "-c", script) as (process, first):
        wait_for(lambda: len(pids("seq", "1", str(last))) == 1, what="no other one runs")
        [writer] = pids("seq", "1", str(last))
        wait_for(lambda: psutil.Process(writer).status() == "sleeping", what="it is held back")
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (7, b"")
        is_same = first + out == expected  # by itself: pytest would draw the difference
        assert is_same
    platform.nsml("stop", "-y", session)


def test_who_may_not_go_on_is_disconnected(
    platform: Platform, code: Path, away: tuple[str, ...], tmp_path: Path
) -> None:
    kim = user_of(platform, "kim", tmp_path)
    small = ("-g", "0", "-c", "0.1", "--memory", "1G", "--grace", "1s", "-o", "name")
    session = platform.nsml("run", *small, cwd=code, environment=kim).stdout.strip()
    wait_for(lambda: "ready" in platform.nsml("logs", session).stdout, what="it runs")
    with endless(platform, away, session, environment=kim) as running:
        platform.nsml("admin", "user", "token", "kim", "--revoke", "-y")
        assert running.end() not in {0, None}
    platform.nsml("stop", "-y", session)
