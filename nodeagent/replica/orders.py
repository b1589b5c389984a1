"""Orders to running programs: requests for the next safe point, and their answers.

A program that uses `nsml` polls a number in `run/orders`, a file that only the agent can write where it is root. When it changes,
the program asks for its order on the replica's socket, and answers there (`nsml/_orders.py`). One order of a
replica is open at a time. If a program damages the file, only requests to it fail.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import structlog

from nodeagent.replica.program_changes import ReplicaChanges, Wanted
from nodeagent.safe_paths import open_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

    from nodeagent.folders import ReplicaId
    from nsml.v1.agents_pb2 import MemberReport

PAGE: Final = "orders"
KNOBS: Final = "knobs"
"""Values set in the attempt, for processes restarted within it (`nsml/_presets.py`)."""
_PAGE_BYTES: Final = 64
_NUMBER_BYTES: Final = 8
_HEADER: Final = b"nsml orders 1\n"
"""After the number: no other file is written, even under this name."""
_AGAIN_S: Final = 1.0
"""Interval of changes to the number until a process comes: a program may have failed to ask."""

log = structlog.get_logger()


class NotAnswered(Exception):
    """An order without an answer; the message gives the reason, for people."""


@dataclass(slots=True, eq=False, kw_only=True)
class Order:
    """An order to one process of a replica.

    Attributes:
        content: the order as the program reads it.
        local_rank: of the receiving process, among those of the replica.
        user: the user who ordered it.
        is_taken: set once a process has taken it.
        answer: the answer, or NotAnswered.
    """

    content: Mapping[str, Any]
    local_rank: int
    user: str
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    answer: asyncio.Future[dict[str, Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def give(self, answer: dict[str, Any]) -> None:
        """Set the answer of the process."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def leave(self) -> None:
        """The process has disconnected; fail the order if it has no answer."""
        if not self.answer.done():
            self.answer.set_exception(NotAnswered("its program ended, or broke off, meanwhile"))
            self.answer.exception()  # nobody may be waiting any more


class ReplicaOrders:
    """The orders to one replica's program, and the current change to it.

    Args:
        run_folder: the folder shared with the agent.
        tell: called when its processes report another state of the change.
    """

    def __init__(self, run_folder: Path, tell: Callable[[], None] = lambda: None) -> None:
        self._run_folder = run_folder
        self._turns = asyncio.Lock()
        self._open: Order | None = None
        self._number = 0
        self._again: asyncio.TimerHandle | None = None
        self.changes = ReplicaChanges(tell=tell, call=self._call_for_change, keep=self._keep_knobs)

    @property
    def user(self) -> str:
        """The user of the open order; "" without one."""
        return "" if self._open is None else self._open.user

    @asynccontextmanager
    async def opened(self, order: Order) -> AsyncIterator[None]:
        """Open the order while the context lasts, after earlier orders."""
        async with self._turns:
            self._open = order
            try:
                yield
            finally:
                self._open = None

    async def taken(self, order: Order) -> None:
        """Return once a process has taken the open order. Raises NotAnswered: its page was removed."""
        while not order.is_taken.is_set():
            self._call()
            with suppress(TimeoutError):
                await asyncio.wait_for(order.is_taken.wait(), _AGAIN_S)

    def take(self, local_rank: int) -> Order | None:
        """Take the open order, if it is for this process of the replica and not taken."""
        order = self._open
        if order is None or order.is_taken.is_set() or order.local_rank != local_rank:
            return None
        order.is_taken.set()
        return order

    def prepare(self) -> None:
        """Create the page if it is missing: a running program reads the existing one. Raises OSError."""
        with open_folder(self._run_folder, []) as folder:
            try:
                self._number = _number_in(folder)
            except OSError:
                _make_page(folder)

    def close(self) -> None:
        """Stop repeating the call."""
        if self._again is not None:
            self._again.cancel()

    def _keep_knobs(self, text: str) -> None:
        """Write the values that were set; if that fails, a restarted process begins without them."""
        try:
            with open_folder(self._run_folder, []) as folder:
                _write_whole(KNOBS, text.encode(), folder)
        except OSError as error:
            log.warning("orders.knobs_not_kept", folder=str(self._run_folder), error=str(error))

    def _call_for_change(self) -> None:
        """Call processes for the wanted change, repeatedly until all have reported."""
        self.close()
        with suppress(NotAnswered):  # then they report nothing
            self._call()
        if not self.changes.is_settled:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(_AGAIN_S, self._call_again)

    def _call_again(self) -> None:
        self.changes.note_ended()
        if not self.changes.is_settled:
            self._call_for_change()

    def _call(self) -> None:
        """Change the number."""
        self._number += 1
        try:
            with open_folder(self._run_folder, []) as folder, _page(folder) as file:
                os.pwrite(file, self._number.to_bytes(_NUMBER_BYTES, "big"), 0)
        except OSError as error:
            raise NotAnswered("its program has removed or replaced run/orders") from error


class ProgramOrders:
    """The orders to all programs of a node; `tell` is called when they report another state of a change."""

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self._tell = tell
        self._replicas: dict[ReplicaId, ReplicaOrders] = {}
        self._wanted: Mapping[ReplicaId, Wanted] | None = None

    def want(self, wanted: Mapping[ReplicaId, Wanted]) -> None:
        """Set the wanted changes of all programs of this node."""
        self._wanted = wanted
        for replica, orders in self._replicas.items():
            orders.changes.want(wanted.get(replica, Wanted()))

    def said(self) -> dict[ReplicaId, tuple[MemberReport, ...]]:
        """Return the reports of processes on changes, by replica."""
        return {
            replica: members
            for replica, orders in self._replicas.items()
            if (members := orders.changes.members)
        }

    @contextmanager
    def open_to(self, replica: ReplicaId, run_folder: Path) -> Iterator[ReplicaOrders]:
        """Accept orders to a replica while the context lasts."""
        orders = ReplicaOrders(run_folder, self._tell)
        try:
            orders.prepare()
        except OSError as error:
            log.warning("orders.no_page", replica=str(replica), error=str(error))
        self._replicas[replica] = orders
        if self._wanted is not None:
            orders.changes.want(self._wanted.get(replica, Wanted()))
        try:
            yield orders
        finally:
            orders.close()
            del self._replicas[replica]

    def to(self, replica: ReplicaId) -> ReplicaOrders:
        """Return the orders to a replica. Raises NotAnswered: it accepts none."""
        orders = self._replicas.get(replica)
        if orders is None:
            raise NotAnswered("its program is just beginning, or ending")
        return orders


@contextmanager
def _page(folder: int) -> Iterator[int]:
    """Open the page in a run folder. Raises OSError: it is missing or replaced.

    It was chowned to the program's user with the folder; from the first order on the agent owns it again.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(PAGE, flags, dir_fd=folder)
    try:
        facts = os.fstat(file)
        is_alone = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1
        is_whole = facts.st_size == _PAGE_BYTES and _header_of(file) == _HEADER
        if not (is_alone and is_whole):
            raise OSError("no page of orders")
        if facts.st_uid != os.geteuid():
            os.fchown(file, os.geteuid(), -1)
        yield file
    finally:
        os.close(file)


def _header_of(file: int) -> bytes:
    return os.pread(file, len(_HEADER), _NUMBER_BYTES)


def _number_in(folder: int) -> int:
    with _page(folder) as file:
        return int.from_bytes(os.pread(file, _NUMBER_BYTES, 0), "big")


def _make_page(folder: int) -> None:
    """Create a page that programs may read. Raises OSError."""
    _write_whole(PAGE, (bytes(_NUMBER_BYTES) + _HEADER).ljust(_PAGE_BYTES, b"\0"), folder)


def _write_whole(name: str, content: bytes, folder: int) -> None:
    """Replace `name` by a file that programs may read. Raises OSError."""
    new = f".{name}-new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
