"""Launchers that run on rank 0 for the whole gang: mpirun and ray. The other replicas do what rank 0 needs of them."""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import subprocess
import sys
import tempfile
import threading

from nsml import _remote_start as remote
from nsml._launchers import (
    MPI_PROCESS,
    WORKING_FOLDER,
    CannotLaunch,
    command_of,
    executable,
    variables_of,
    words_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence

_READY_S = 600.0
_OBJECTS_SHARE, _SHM_SHARE = 0.3, 0.9
"""Of the replica's memory for Ray's objects, as Ray does with a machine's; and of its shared memory at most."""
_LEAST_OBJECTS_BYTES = 80 << 20
_SAVES_S = "10"
"""Seconds between SIGTERM and SIGKILL of MPI processes: the usual grace of a session; Open MPI's own is 1."""

_WAIT_FOR_RAY = """\
import sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error", configure_logging=False)
until = time.monotonic() + float(sys.argv[3])
while sum(one["Alive"] for one in ray.nodes()) < int(sys.argv[2]):
    if time.monotonic() > until:
        sys.exit("nsml: not all replicas have joined the Ray cluster")
    time.sleep(0.2)
"""


def run(launcher: str, program: Sequence[str]) -> int:
    """Do this replica's part; return the exit code. Raises CannotLaunch."""
    secret = remote.take_secret()
    env = os.environ
    env.update(variables_of(launcher, env))
    env[WORKING_FOLDER] = os.getcwd()
    rank, replicas = int(env.get("NSML_RANK", "0")), int(env["NSML_WORLD_SIZE"])
    if replicas > 1 and not secret:
        raise CannotLaunch(
            "this replica has no secret in common with the others",
            why="the control plane is older than --launch, or its agent was restarted while this began",
            advice="nsml run --rerun SESSION",
        )
    hosts, ports = env["NSML_PARALLEL_WORLD"].split(","), env["NSML_PARALLEL_PORTS"].split(",")
    addresses = [(host, int(port)) for host, port in zip(hosts, ports)]
    if launcher == "ray":
        env.update(_ray_variables(secret))
        executable(["ray"])
    remote.adopt_orphans()
    if launcher == "mpirun":
        for name, value in interface_variables(env.get("GLOO_SOCKET_IFNAME", "")).items():
            env.setdefault(name, value)
    if rank:
        return _follow(launcher, addresses, secret, rank)
    stopping = _Stopping()
    controls = remote.Controls(addresses, secret) if replicas > 1 else None
    try:
        if launcher == "ray":
            return _ray(program, replicas, controls, stopping)
        return _mpirun(program, addresses, secret, stopping)
    finally:
        if controls is not None:
            controls.end()


class _Stopping:
    """Passes signals on to the program of the moment."""

    def __init__(self) -> None:
        self.number = 0
        self._program: Optional[subprocess.Popen[bytes]] = None
        remote.on_signals(self._stop)

    def _stop(self, number: int) -> None:
        self.number = self.number or number
        if self._program is None:
            raise SystemExit(128 + number)
        self._program.send_signal(number)

    def wait(self, program: subprocess.Popen[bytes]) -> int:
        """Wait for its end; return its exit code."""
        self._program = program
        try:
            code = program.wait()
        finally:
            self._program = None
        return 128 - code if code < 0 else code


def _follow(launcher: str, addresses: Sequence[remote.Address], secret: bytes, rank: int) -> int:
    """Be a replica of rank > 0."""
    try:
        listener = remote.Listener(addresses[rank][1], secret, rank)
    except OSError as error:
        raise CannotLaunch(f"rank 0 cannot reach this replica: {error}") from None
    remote.on_signals(lambda number: listener.end(128 + number))
    if launcher != "ray":
        code = listener.serve()
        remote.end_processes(remote.descendants(os.getpid()))  # daemons that left their parents
        return code
    host, port = addresses[0]
    node = _start_ray(["--address", f"{host}:{port}", "--node-ip-address", addresses[rank][0]])
    threading.Thread(target=lambda: listener.end(node.wait() or 1), daemon=True).start()
    try:
        return listener.serve()
    finally:
        _end_ray()


# mpirun


def mpi_variables(agent: str, hosts: Sequence[str]) -> Dict[str, str]:
    """Return variables of Open MPI 4 and 5, each a default; `agent` is run as their ssh.

    Processes are not bound to cores: sessions share a machine, and each would take the first ones.
    """
    found = {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_odls_base_sigkill_timeout": _SAVES_S,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "PRTE_MCA_odls_base_sigkill_timeout": _SAVES_S,
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if len(set(hosts)) < len(hosts):
        # Replicas on one node share a name and no memory, which Open MPI takes for one host with both.
        found["OMPI_MCA_btl"] = "^sm,vader"
    return found


def interface_variables(interface: str) -> Dict[str, str]:
    """Return variables for Open MPI's daemons on this node, where others reach it at this interface; "": any.

    They would try all networks, also those of containers, which others do not reach.
    """
    names = ("OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_oob_tcp_if_include") if interface else ()
    return dict.fromkeys(names, interface)


def mpi_hosts(addresses: Sequence[remote.Address], each: int) -> str:
    """Return the hostfile of mpirun: this replica by its address, others by names that lead to their listeners."""
    names = ["localhost", *(f"{remote.ALIAS}{rank}" for rank in range(1, len(addresses)))]
    return "".join(f"{name} slots={each}\n" for name in names)


def _mpirun(
    program: Sequence[str],
    addresses: Sequence[remote.Address],
    secret: bytes,
    stopping: _Stopping,
) -> int:
    each = max(int(os.environ.get("NSML_GPU_NUM", "0")), 1)
    with tempfile.TemporaryDirectory(prefix="nsml-mpi-") as folder:
        gang, hosts = os.path.join(folder, "gang"), os.path.join(folder, "hosts")
        remote.write_gang(gang, addresses, secret)
        with open(hosts, "w") as out:
            out.write(mpi_hosts(addresses, each))
        agent = f"{sys.executable} -m nsml._remote_start"
        own = mpi_variables(agent, [host for host, _ in addresses])
        if float(os.environ.get("NSML_CPU_NUM") or each) < each:
            own["OMPI_MCA_mpi_yield_when_idle"] = (
                "1"  # they would wait for one another without a pause
            )
        defaults = {**own, remote.GANG_FILE: gang}
        env = {**defaults, **os.environ}
        words = ["-m", "nsml._launch", MPI_PROCESS, *words_of(program)]
        command = command_of("mpirun", program, {**env, "NSML_HOSTFILE": hosts})
        at = command.index("python")
        command = [*command[:at], "python", "-u", *words]
        return stopping.wait(subprocess.Popen(executable(command), env=env))


# Ray


def _ray_variables(secret: bytes) -> Dict[str, str]:
    """Return variables of Ray: with a token, none but this gang's replicas are served."""
    found = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    if secret:
        token = hmac.new(secret, b"ray", hashlib.sha256).hexdigest()
        found.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    return {name: value for name, value in found.items() if name not in os.environ}


def ray_options(env: Mapping[str, str]) -> List[str]:
    """Return the options of `ray start` that say what this replica has: Ray would count the machine's."""
    gpus = "0" if env.get("NSML_SIMULATED") else env.get("NSML_GPU_NUM", "0")
    cpus = max(int(float(env.get("NSML_CPU_NUM") or os.cpu_count() or 1)), 1)
    options = ["--block", "--disable-usage-stats", "--num-gpus", gpus, "--num-cpus", str(cpus)]
    memory = int(env.get("NSML_MEMORY_BYTES") or 0)
    if memory:
        of_objects = int(memory * _OBJECTS_SHARE)
        try:
            room = os.statvfs("/dev/shm")  # noqa: S108 - where Ray keeps objects
            of_objects = min(of_objects, int(room.f_frsize * room.f_blocks * _SHM_SHARE))
        except OSError:
            pass
        of_objects = max(of_objects, _LEAST_OBJECTS_BYTES)
        left = max(memory - of_objects, _LEAST_OBJECTS_BYTES)
        options += ["--object-store-memory", str(of_objects), "--memory", str(left)]
    return options


def _start_ray(options: Sequence[str]) -> subprocess.Popen[bytes]:
    command = executable(["ray", "start", *options, *ray_options(os.environ)])
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _end_ray() -> None:
    """End this replica's part: `ray stop` would end that of every session that it can see.

    The program has ended, and nothing of the cluster outlives it. Told to end (SIGTERM), Ray would drain it for 30 s.
    """
    remote.end_processes(remote.descendants(os.getpid()), numbers=(signal.SIGKILL,))


def _ray(
    program: Sequence[str],
    replicas: int,
    controls: Optional[remote.Controls],
    stopping: _Stopping,
) -> int:
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    address = f"{host}:{port}"
    _start_ray(
        ["--head", "--node-ip-address", host, "--port", port, "--include-dashboard", "false"]
    )
    try:
        env = {**os.environ, "RAY_ADDRESS": address}
        wait = ["python", "-c", _WAIT_FOR_RAY, address, str(replicas), str(_READY_S)]
        code = stopping.wait(subprocess.Popen(wait, env=env))
        if code or stopping.number:
            return code or 128 + stopping.number
        return stopping.wait(subprocess.Popen(command_of("ray", program, env), env=env))
    finally:
        if controls is not None:
            controls.end()  # all end at the same time
        _end_ray()
