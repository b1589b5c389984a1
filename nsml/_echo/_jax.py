"""JAX: `jax.distributed.initialize()` without arguments finds the other replicas of a gang.

JAX asks its cluster environments in turn (`jax._src.clusters`); a subclass registers itself, as the last one. So Slurm,
Open MPI and others that a program runs under come first.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_OF_PROCESSES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""Variables of launchers with several processes in a replica: the numbers here are of replicas."""


def install(module: Any) -> None:
    """Register the gang; `module` is `jax._src.clusters`."""
    base = module.ClusterEnv
    if any(one.__name__ == "NsmlGang" for one in base._cluster_types):  # noqa: SLF001 - JAX has no other list of them
        return

    class NsmlGang(base):  # type: ignore[misc, valid-type]
        """A gang: each replica is one process, with all of its devices."""

        name: str = "nsml"

        @classmethod
        def is_env_present(cls) -> bool:
            is_of_others = any(name in os.environ for name in _OF_PROCESSES)
            return "NSML_RUN_DIR" in os.environ and _address() != "" and not is_of_others

        @classmethod
        def get_coordinator_address(cls, *given: Any, **named: Any) -> str:
            port = named.get("override_coordinator_port") or (given[1:] and given[1])
            host, _, own = _address().rpartition(":")
            return f"{host}:{port or own}"

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["NSML_WORLD_SIZE"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["NSML_RANK"])

        @classmethod
        def get_local_process_id(cls) -> Optional[int]:
            return None  # JAX then uses all devices that the replica sees


def _address() -> str:
    try:
        return f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT'])}"
    except (KeyError, ValueError):
        return ""
