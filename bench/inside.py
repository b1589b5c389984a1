"""What it costs to be inside a running session, beside OpenSSH on loopback: keys, bytes, starts, and what others feel.

OpenSSH's server is started for that, where it is installed (as root): its figures are the peers. Elsewhere asyncssh's
is, whose bytes a Python program encrypts, too. The client is OpenSSH's everywhere. Everything in turn.

`nsml_ssh` is that client with what `nsml ssh-config` prints, `nsml_ssh_again` the same over a connection that another
client holds (ControlMaster). `first_byte_ms` is from the start of a client until a byte of a remote program is here.

Clients of nsml go to the agent, which is on their machine. `--by relay` and `--by controlplane` make them go as if they were
on another one, where that has a relay or none; with root alone. `controlplane_cpu_s` is what the control plane's own process
takes for 200 MB through `nsml sh`, without its relay's.

Programs that print without end have clients in sessions of their own, which the kernel gives shares of the CPU of their
own: elsewhere they would be on other machines, and the call that is measured would not wait for them. How much slower its
slowest are then is `call_p99_ratio`, the median of all rounds, each of which measures both in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from bench.platform import PROGRAMS, Platform
from bench.report import percentile, report
from nsml.client import contexts, direct_tunnels
from nsml.client.calls import Client
from nsml.client.connect import connect
from nsml.common.concurrency import TaskGroup

ROUNDS = 5
KEYS = 300
KEY_PAUSE_S = 0.01
SIZE = 200_000_000
SHELLS = 100
CALLS = 1_000
ENDLESS = 3
PATIENCE_S = 60.0
TAKES = ["sh", "-c", "echo; wc -c"]
_PEER = """
import asyncio, asyncssh, subprocess

async def serve(process):
    running = subprocess.Popen(
        process.command, shell=True, stdin=-1, stdout=-1, stderr=-1, start_new_session=True
    )
    await process.redirect(running.stdin, running.stdout, running.stderr)
    code = await asyncio.to_thread(running.wait)
    await process.stdout.drain()
    process.exit(code)

async def main():
    server = await asyncssh.listen(
        "127.0.0.1", {port}, server_host_keys=[{host!r}], authorized_client_keys={user!r},
        process_factory=serve, encoding=None, line_editor=False,
    )
    await server.wait_closed()

asyncio.run(main())
"""
PROGRAM = "import time\nprint('on', flush=True)\nwhile True:\n    time.sleep(60)\n"

Command = Sequence[str]


class Ways:
    """How a command is run: here, through nsml, through ssh."""

    def __init__(
        self, platform: Platform, session: str, ssh: Mapping[str, Command], prefix: Command = ()
    ) -> None:
        self.environment = platform.environment
        self.controlplane = platform.pid("controlplane")
        self._nsml = [*prefix, str(PROGRAMS / "nsml"), "sh", session]
        self._ssh = ssh

    def of(self, argv: Command, *, has_terminal: bool) -> dict[str, Command]:
        """The command line of each, by name."""
        ways = {"bare": argv, "nsml": [*self._nsml, "-t" if has_terminal else "-T", "--", *argv]}
        for name, ssh in self._ssh.items():
            ways[name] = [*ssh, "-tt" if has_terminal else "-T", shlex.join(argv)]
        return ways

    def by_ssh(self, argv: Command) -> dict[str, Command]:
        """Those of `of` that ssh encrypts."""
        return {name: [*ssh, "-T", shlex.join(argv)] for name, ssh in self._ssh.items()}


@contextmanager
def ssh_ways(
    platform: Platform, session: str, peer: Command, prefix: Command
) -> Iterator[Mapping[str, Command]]:
    """How ssh reaches a session and the peer, by name."""
    if not shutil.which("ssh"):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="nsml-ssh-") as folder:
        settings, control = Path(folder) / "config", Path(folder) / "control"
        settings.write_text(platform.nsml("ssh-config").stdout)
        host = f"{platform.nsml('getid', session).stdout.strip()}.nsml"
        ways: dict[str, Command] = {"nsml_ssh": [*prefix, "ssh", "-F", str(settings), host]}
        if peer:
            ways["ssh"] = [*peer]
        held = subprocess.Popen(
            [*prefix, "ssh", "-F", str(settings), "-M", "-S", str(control), "-N", host],
            env=platform.environment,
            stdin=subprocess.DEVNULL,
        )
        try:
            wait(control.exists, "ssh does not connect")
            ways["nsml_ssh_again"] = ["ssh", "-F", str(settings), "-S", str(control), host]
            yield ways
        finally:
            held.terminate()
            held.wait()


@contextmanager
def as_if_elsewhere(*, is_meant: bool) -> Iterator[Command]:
    """What runs a program with another boot id than this machine's, which clients here have, too, meanwhile."""
    if not is_meant:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="nsml-boot-") as folder:
        file = Path(folder) / "boot_id"
        file.write_text("00000000-0000-0000-0000-000000000000\n")
        script = f'mount --bind {file} {direct_tunnels.BOOT_ID} && exec "$@"'
        with patch.object(direct_tunnels, "BOOT_ID", file):
            yield ["unshare", "--mount", "sh", "-c", script, "sh"]


def cpu_s(pid: int) -> float:
    """What a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def wait(condition: Callable[[], bool], why_not: str) -> None:
    """Until it is so; TimeoutError after PATIENCE_S."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(why_not)
        time.sleep(0.05)


@contextmanager
def ssh_server() -> Iterator[Command]:
    """An ssh server on loopback, and how it is reached; empty where there is no ssh."""
    if not shutil.which("ssh"):
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="nsml-ssh-") as folder, ExitStack() as stack:
        place = Path(folder)
        for name in ("host", "user"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
            subprocess.run(key, check=True)
        port = 40_000 + os.getpid() % 20_000
        running = subprocess.Popen(_server(place, port), stderr=subprocess.DEVNULL)
        stack.callback(running.wait)
        stack.callback(running.terminate)
        (place / "ssh_config").write_text(
            f"Host peer\n HostName 127.0.0.1\n Port {port}\n IdentityFile {place / 'user'}\n"
            f" IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile {place / 'known'}\n"
            " LogLevel ERROR\n"
        )
        ssh = ["ssh", "-F", str(place / "ssh_config"), "peer"]
        wait(
            lambda: subprocess.run([*ssh, "true"], check=False).returncode == 0,
            "the ssh server does not answer",
        )
        yield ssh


def _server(place: Path, port: int) -> Command:
    """The command line of the best that there is."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin")
    if server is None or os.geteuid() != 0:
        program = _PEER.format(port=port, host=str(place / "host"), user=str(place / "user.pub"))
        return [sys.executable, "-c", program]
    Path("/run/sshd").mkdir(exist_ok=True)
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": place / "host",
        "AuthorizedKeysFile": place / "user.pub",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
        "PidFile": "none",
    }
    (place / "sshd_config").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
    return [server, "-D", "-f", str(place / "sshd_config")]


def key_to_echo_ms(command: Command, environment: Mapping[str, str]) -> list[float]:
    """From a key in a terminal until it stands there, with `cat` at the other end."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        _until_echoed(ours)
        taken = []
        for number in range(KEYS):
            key = b"abcdefgh"[number % 8 : number % 8 + 1]
            began = time.perf_counter()
            os.write(ours, key)
            while key not in _read(ours):
                pass
            taken.append((time.perf_counter() - began) * 1e3)
            time.sleep(KEY_PAUSE_S)
        return taken
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _until_echoed(terminal: int) -> None:
    """Wait until the other end is there, which has not taken what was typed before."""
    give_up_at = time.monotonic() + PATIENCE_S
    seen = b""
    while b"here42" not in seen:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"nothing is echoed: {seen!r}")
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536)
    while select.select([terminal], [], [], 0.3)[0]:
        os.read(terminal, 65536)


def _read(terminal: int) -> bytes:
    if not select.select([terminal], [], [], PATIENCE_S)[0]:
        raise TimeoutError("no echo")
    return os.read(terminal, 65536)


def megabytes_per_s(command: Command, environment: Mapping[str, str]) -> float:
    """From the first byte of SIZE to the last."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        count = len(os.read(process.stdout.fileno(), 1 << 20))
        began = time.perf_counter()
        first = count
        while data := os.read(process.stdout.fileno(), 1 << 20):
            count += len(data)
        taken = time.perf_counter() - began
    if count != SIZE or process.returncode:
        raise RuntimeError(f"{count} bytes, exit code {process.returncode}")
    return (count - first) / taken / 1e6


def taken_megabytes_per_s(command: Command, environment: Mapping[str, str]) -> float:
    """From the answer of `TAKES` there until it has taken SIZE bytes."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        piece = bytes(1_000_000)
        began = time.perf_counter()
        for _ in range(SIZE // len(piece)):
            process.stdin.write(piece)
        process.stdin.close()
        count = int(process.stdout.readline())
        taken = time.perf_counter() - began
    if count != SIZE or process.returncode:
        raise RuntimeError(f"{count} bytes, exit code {process.returncode}")
    return SIZE / taken / 1e6


def first_byte_ms(command: Command, environment: Mapping[str, str]) -> float:
    """From its start until it has written a byte."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        found = os.read(process.stdout.fileno(), 1)
        taken = (time.perf_counter() - began) * 1e3
    if not found or process.returncode:
        raise RuntimeError(f"exit code {process.returncode}")
    return taken


def whole_ms(command: Command, environment: Mapping[str, str]) -> float:
    """A command from its start to its end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


async def attach_ms(client: Client, session: str) -> float:
    """From the call of a client that is connected until a program runs."""
    began = time.perf_counter()
    async with client.sessions.open_program(session, ["true"]) as program:
        taken = (time.perf_counter() - began) * 1e3
        async for _ in program.output():
            pass
    if program.exit_code != 0:
        raise RuntimeError(f"exit code {program.exit_code}")
    return taken


async def shells_at_once_s(client: Client, session: str) -> float:
    """SHELLS programs that are all there before the first one ends."""
    everybody = asyncio.Barrier(SHELLS)

    async def one(number: int) -> None:
        async with client.sessions.open_program(session, ["cat"]) as program:
            await program.write(b"%d" % number)
            found = b""
            output = program.output()
            while found != b"%d" % number:
                found += (await anext(output))[1]
            await everybody.wait()
            await program.end_input()
            async for _ in output:
                pass
            if program.exit_code != 0:
                raise RuntimeError(f"exit code {program.exit_code}")

    began = time.perf_counter()
    async with TaskGroup() as group:
        for number in range(SHELLS):
            group.create_task(one(number))
    return time.perf_counter() - began


async def call_p99_ms(client: Client, session: str) -> float:
    """Of an ordinary call, one after the other."""
    taken = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await client.sessions.get(session)
        taken.append((time.perf_counter() - began) * 1e3)
    return percentile(taken, 0.99)


@contextmanager
def endless(ways: Ways) -> Iterator[None]:
    """Three programs that print without end into readers that take everything."""
    command = ways.of(["yes", "x" * 100], has_terminal=False)["nsml"]
    running = [
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, env=ways.environment, start_new_session=True
        )
        for _ in range(ENDLESS)
    ]
    try:
        time.sleep(2.0)
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def measure_rates(ways: Ways, found: dict[str, list[float]]) -> None:
    """Bytes down and up, once each way."""
    down = ["head", "-c", str(SIZE), "/dev/zero"]
    for way, command in ways.of(down, has_terminal=False).items():
        used = cpu_s(ways.controlplane)
        rate = megabytes_per_s(command, ways.environment)
        found.setdefault(f"{way}_mb_per_s", []).append(rate)
        if way == "nsml":
            used = cpu_s(ways.controlplane) - used
            found.setdefault("controlplane_cpu_s", []).append(used)
    for way, command in ways.by_ssh(TAKES).items():
        try:
            rate = taken_megabytes_per_s(command, ways.environment)
        except RuntimeError as lost:
            if way != "ssh":
                raise
            # seen of OpenSSH's server on a busy machine, one time in ten
            print(f"the peer lost bytes: {lost}", file=sys.stderr)
        else:
            found.setdefault(f"{way}_up_mb_per_s", []).append(rate)


async def measure(platform: Platform, session: str, ways: Ways) -> dict[str, float]:
    """All figures; those of `ssh` and `bare` beside ours."""
    found: dict[str, list[float]] = {}
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    async with connect(context) as client:
        await attach_ms(client, session)
        for _ in range(ROUNDS):
            found.setdefault("attach_ms", []).append(await attach_ms(client, session))
            for way, command in ways.of(["true"], has_terminal=False).items():
                taken = await asyncio.to_thread(whole_ms, command, ways.environment)
                found.setdefault(f"{way}_true_ms", []).append(taken)
            for way, command in ways.of(["echo"], has_terminal=False).items():
                taken = await asyncio.to_thread(first_byte_ms, command, ways.environment)
                found.setdefault(f"{way}_first_byte_ms", []).append(taken)
        raw = ["sh", "-c", "sleep 1; echo here42; exec cat"]
        for way, command in ways.of(raw, has_terminal=True).items():
            keys = await asyncio.to_thread(key_to_echo_ms, command, ways.environment)
            found[f"{way}_key_p50_ms"] = [statistics.median(keys)]
            found[f"{way}_key_p95_ms"] = [percentile(keys, 0.95)]
        for _ in range(ROUNDS):
            await asyncio.to_thread(measure_rates, ways, found)
        for _ in range(ROUNDS):
            alone = await call_p99_ms(client, session)
            with endless(ways):
                beside = await call_p99_ms(client, session)
            found.setdefault("call_p99_ms", []).append(alone)
            found.setdefault("call_p99_beside_endless_ms", []).append(beside)
            found.setdefault("call_p99_ratio", []).append(beside / alone)
        found["shells_at_once_s"] = [await shells_at_once_s(client, session)]
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=["agent", "relay", "controlplane"], default="agent")
    parser.add_argument("--json", action="store_true")
    by = parser.parse_args().by
    settings = {"NSML_CONTROLPLANE_LISTEN_RELAY": "127.0.0.1:0"} if by == "relay" else {}
    with (
        as_if_elsewhere(is_meant=by != "agent") as prefix,
        Platform(environment=settings) as platform,
        ssh_server() as peer,
        tempfile.TemporaryDirectory() as code,
    ):
        (Path(code) / "main.py").write_text(PROGRAM)
        platform.nsml("run", cwd=Path(code), timeout_s=120)
        while not platform.nsml("logs", "@last").stdout:
            time.sleep(0.05)
        [session] = platform.json("ps")["items"]
        with ssh_ways(platform, session["name"], peer, prefix) as ssh:
            figures = asyncio.run(
                measure(platform, session["name"], Ways(platform, session["name"], ssh, prefix))
            )
        platform.nsml("stop", "@last")
    peers = {}
    for name in [one for one in figures if one.startswith("ssh_")]:
        figure = figures.pop(name)
        for way in ("nsml_", "nsml_ssh_", "nsml_ssh_again_"):
            if name.replace("ssh_", way, 1) in figures:
                peers[name.replace("ssh_", way, 1)] = figure
    report(figures, peers=peers)


if __name__ == "__main__":
    main()
