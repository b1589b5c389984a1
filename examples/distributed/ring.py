"""Sums over the replicas of a gang: torch's gloo where torch is, else a ring over plain sockets.

The platform tells each replica where the others are: torch reads MASTER_ADDR, MASTER_PORT, RANK and
WORLD_SIZE; the ring reads NSML's PARALLEL_WORLD, PARALLEL_PORTS and MY_RANK.
"""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Protocol

import numpy as np

import nsml

try:
    import torch
    import torch.distributed
except ImportError:
    torch = None

PATIENCE_S = 120.0


class Reducer(Protocol):
    """What the replicas of a gang do together. Every replica makes the same calls in the same order."""

    rank: int
    world: int

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Element by element over all replicas; of float64, in one dimension."""
        ...

    def close(self) -> None:
        """Leave the others."""
        ...


def join_gang(backend: str) -> Reducer:
    """Meet the other replicas.

    Args:
        backend: "gloo", "sockets", or "auto" for gloo where torch can be imported and this process
            has a rank: of the platform, or of torchrun.
    """
    if backend == "auto":
        backend = "gloo" if torch and "RANK" in os.environ else "sockets"
    if backend == "gloo" and not torch:
        raise SystemExit("--backend gloo needs torch, which cannot be imported here")
    if backend == "gloo" and "RANK" not in os.environ:
        raise SystemExit("--backend gloo needs a rank: start it with torchrun")
    return Gloo() if backend == "gloo" else Ring()


class Gloo:
    """torch.distributed over TCP."""

    def __init__(self) -> None:
        torch.distributed.init_process_group("gloo")  # env://
        self.rank = torch.distributed.get_rank()
        self.world = torch.distributed.get_world_size()

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See Reducer."""
        tensor = torch.from_numpy(values.copy())
        torch.distributed.all_reduce(tensor)
        return tensor.numpy()

    def close(self) -> None:
        """See Reducer."""
        torch.distributed.destroy_process_group()


class Ring:
    """Each replica sends to the next and receives from the one before.

    A vector of n parts for n replicas goes round twice: n - 1 steps in which each part is summed up
    on its way, and n - 1 in which the sums are passed on. Each replica sends twice the vector,
    however many replicas there are.
    """

    def __init__(self) -> None:
        hosts, ports = nsml.PARALLEL_WORLD, [int(port) for port in nsml.PARALLEL_PORTS]
        self.rank, self.world = nsml.MY_RANK, max(len(hosts), 1)
        if self.world == 1:
            return
        following = (self.rank + 1) % self.world
        # Which gang this is: who comes late from another one is turned away.
        name = f"{nsml.SESSION_ID}.{os.environ.get('NSML_ATTEMPT', '')}"
        with socket.create_server(("", ports[self.rank])) as listener:
            self._next = _connect(hosts[following], ports[following])
            self._next.sendall(_greeting(name, self.rank))
            self._before = _accept(listener, _greeting(name, (self.rank - 1) % self.world))
        self._next.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next.settimeout(0.0)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See Reducer."""
        if self.world == 1:
            return values.copy()
        parts = np.array_split(values.astype(np.float64), self.world)
        for step in range(self.world - 1):
            received = self._pass_on(parts, self.rank - step)
            parts[(self.rank - step - 1) % self.world] += received
        for step in range(self.world - 1):
            received = self._pass_on(parts, self.rank - step + 1)
            parts[(self.rank - step) % self.world] = received
        return np.concatenate(parts)

    def close(self) -> None:
        """See Reducer."""
        if self.world > 1:
            self._next.close()
            self._before.close()

    def _pass_on(self, parts: list[np.ndarray], which: int) -> np.ndarray:
        """Send one part to the next replica while the part before it comes in."""
        outgoing = memoryview(parts[which % self.world].tobytes())
        wanted = parts[(which - 1) % self.world].nbytes
        incoming = bytearray()
        while outgoing or len(incoming) < wanted:
            sources = [self._before] if len(incoming) < wanted else []
            readable, writable, _ = select.select(
                sources, [self._next] if outgoing else [], [], PATIENCE_S
            )
            if not readable and not writable:
                raise ConnectionError(f"the others of the gang were silent for {PATIENCE_S:g} s")
            if writable:
                outgoing = outgoing[self._next.send(outgoing) :]
            if readable:
                data = self._before.recv(wanted - len(incoming))
                if not data:
                    raise ConnectionError("the replica before this one in the ring is gone")
                incoming += data
        return np.frombuffer(bytes(incoming))


def _greeting(name: str, rank: int) -> bytes:
    return f"{name}.{rank}".encode()[:64].ljust(64)


def _connect(host: str, port: int) -> socket.socket:
    """The replicas of a gang start together, but not in the same instant."""
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=PATIENCE_S)
        except OSError as error:
            if time.monotonic() > ends_at:
                raise ConnectionError(f"nobody answers at {host}:{port}: {error}") from error
            time.sleep(0.1)


def _accept(listener: socket.socket, greeting: bytes) -> socket.socket:
    listener.settimeout(PATIENCE_S)
    while True:
        caller, _ = listener.accept()
        caller.settimeout(PATIENCE_S)
        said = b""
        while len(said) < len(greeting) and (data := caller.recv(len(greeting) - len(said))):
            said += data
        if said == greeting:
            return caller
        caller.close()
