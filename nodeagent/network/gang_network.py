"""Addresses and variables by which the replicas of a gang find one another.

Every replica of an attempt computes the same results. Rank r may listen at port
`meeting_port(attempt) + r` of its node; that of rank 0 is MASTER_PORT. The number differs between
attempts, and is below the system's ephemeral ports.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.folders import ReplicaId

_FIRST_PORT = 20_000
_PORTS = 10_000


HOST = "host"
NONE = "none"
_OVERLAY = "overlay:"
_NETWORK = re.compile(r"overlay:[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangNetwork:
    """How the replicas of gangs on this node reach others, as set by its administrator.

    `mode` is `host`, `overlay:NAME` (a network of the container engine) or `none`. `devices` are
    nodes or folders of /dev for fast networks. `unlimited_memlock`: containers may register any amount of
    memory with such devices. `environment` is for every gang; a session's own takes precedence.
    """

    mode: str = HOST
    devices: tuple[str, ...] = ()
    unlimited_memlock: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def engine_network(self) -> str:
        """The network's name in the container engine."""
        return self.mode.removeprefix(_OVERLAY)

    @property
    def is_overlay(self) -> bool:
        """Whether containers get a network of their own in it, with names."""
        return self.mode.startswith(_OVERLAY)

    def hosts(self, replica: ReplicaId, of_nodes: Sequence[str]) -> list[str]:
        """Return the replicas' hosts, by rank: their nodes, or names within an overlay."""
        if not self.is_overlay:
            return list(of_nodes)
        return [overlay_name(replica, rank) for rank in range(len(of_nodes))]


def overlay_name(replica: ReplicaId, rank: int) -> str:
    """Return the name of a rank of the replica's attempt within an overlay network."""
    return f"{replica.session_id}-{replica.attempt}-{rank}"


def is_mode(text: str) -> bool:
    """Whether `text` is a mode of a GangNetwork."""
    return text in {HOST, NONE} or _NETWORK.fullmatch(text) is not None


def interface_variables(mode: str, interface: str) -> dict[str, str]:
    """Return the variable that names the node's interface for torch's gloo.

    By default gloo uses the address of the node's own name, which is often one of the
    loopback, and replicas on several nodes never meet. A network of an engine has names of its own.
    """
    return {"GLOO_SOCKET_IFNAME": interface} if mode == HOST and interface else {}


def gang_variables(
    replica: ReplicaId, hosts: Sequence[str], world: int, devices: int
) -> dict[str, str]:
    """Return the variables of torch's `env://` and of NSML's constants for one replica.

    A replica counts as a node, wherever it was placed: it sees its own devices only, numbered from
    0. `RANK`, `WORLD_SIZE` and `LOCAL_RANK` describe a process, so they are set only where each
    replica is one: Lightning and accelerate read them as a launcher's, and start no processes for
    further devices.

    Args:
        replica: the replica that gets them.
        hosts: of all replicas by rank, as other nodes reach them.
        world: number of replicas.
        devices: number of devices of each replica.
    """
    port = meeting_port(replica)
    variables = {
        "NSML_WORLD_SIZE": str(world),
        "NSML_PARALLEL_WORLD": ",".join(hosts),
        "NSML_PARALLEL_PORTS": ",".join(str(port + rank) for rank in range(world)),
        "MASTER_ADDR": hosts[0] if world > 1 else "127.0.0.1",
        "MASTER_PORT": str(port),
        "NODE_RANK": str(replica.rank),
    }
    if world > 1 and devices <= 1:
        variables |= {"RANK": str(replica.rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0"}
    return variables


def launcher_variables(gang: Mapping[str, str], world: int, devices: int) -> dict[str, str]:
    """Return defaults for launchers, which a session may set otherwise.

    torchrun reads the defaults of its options from `PET_*` (torch.distributed.argparse_util), so
    that `torchrun train.py` starts a process for each device of each replica.

    Args:
        gang: the replica's `gang_variables`.
        world: number of replicas.
        devices: number of devices of each replica.
    """
    return {
        "NNODES": str(world),
        "PET_NNODES": str(world),
        "PET_NPROC_PER_NODE": str(max(devices, 1)),
        **{f"PET_{name}": gang[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")},
    }


def hostfile_text(hosts: Sequence[str], devices: int) -> str:
    """Return the hostfile of a gang, `HOST slots=N` for each replica, as DeepSpeed and MPI read them.

    Names are unique, as DeepSpeed requires: further replicas of one host have their rank behind its name.
    """
    names = [
        f"{host}.rank-{rank}" if host in hosts[:rank] else host for rank, host in enumerate(hosts)
    ]
    return "".join(f"{name} slots={max(devices, 1)}\n" for name in names)


def meeting_port(replica: ReplicaId) -> int:
    """Return the port of rank 0, known to all replicas of the attempt."""
    return _FIRST_PORT + zlib.crc32(f"{replica.session_id}.{replica.attempt}".encode()) % _PORTS


def own_port(replica: ReplicaId) -> int:
    """Return the port that this replica may listen at."""
    return meeting_port(replica) + replica.rank
