"""Orders to running programs: what is asked of one at its next safe point, and its answer.

A program that uses `nsml` looks at a number in `run/orders`, a file that the agent alone writes where it is root. When it changes,
the program asks on the replica's socket what there is for it, and answers there (`nsml/_orders.py`). One order of a
replica is open at a time. Whatever a program does to the file, only who asks something of it suffers.
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
"""What was set in the attempt, for processes that are started anew within it (`nsml/_presets.py`)."""
_PAGE_BYTES: Final = 64
_NUMBER_BYTES: Final = 8
_HEADER: Final = b"nsml orders 1\n"
"""Behind the number: no other file is written, whatever takes its name."""
_AGAIN_S: Final = 1.0
"""How often the number changes while nobody has come: a program that could not ask tries again."""

log = structlog.get_logger()


class NotAnswered(Exception):
    """An order without an answer; the message says why, for people."""


@dataclass(slots=True, eq=False, kw_only=True)
class Order:
    """What one process of a replica is asked.

    Attributes:
        content: the order as the program reads it.
        local_rank: of the process that is to take it, among those of the replica.
        user: who asks.
        is_taken: set once a process has taken it.
        answer: what it says, or NotAnswered.
    """

    content: Mapping[str, Any]
    local_rank: int
    user: str
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    answer: asyncio.Future[dict[str, Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def give(self, answer: dict[str, Any]) -> None:
        """The process has answered."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def leave(self) -> None:
        """The connection of the process is over; without an answer there will be none."""
        if not self.answer.done():
            self.answer.set_exception(NotAnswered("its program ended, or broke off, meanwhile"))
            self.answer.exception()  # nobody may wait any more


class ReplicaOrders:
    """The orders to one replica's program, and the change that is made to it.

    Args:
        run_folder: what it shares with the agent.
        tell: called when its processes say another thing of the change.
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
        """Whose order is open; "" without one."""
        return "" if self._open is None else self._open.user

    @asynccontextmanager
    async def opened(self, order: Order) -> AsyncIterator[None]:
        """Have the order taken while the context lasts; orders before it are waited for."""
        async with self._turns:
            self._open = order
            try:
                yield
            finally:
                self._open = None

    async def taken(self, order: Order) -> None:
        """Return once a process has taken the open order. Raises NotAnswered: its page is gone."""
        while not order.is_taken.is_set():
            self._call()
            with suppress(TimeoutError):
                await asyncio.wait_for(order.is_taken.wait(), _AGAIN_S)

    def take(self, local_rank: int) -> Order | None:
        """The open order, if it is for this process of the replica and nobody has it."""
        order = self._open
        if order is None or order.is_taken.is_set() or order.local_rank != local_rank:
            return None
        order.is_taken.set()
        return order

    def prepare(self) -> None:
        """Make the page, unless it is there: a program that runs looks at that one. Raises OSError."""
        with open_folder(self._run_folder, []) as folder:
            try:
                self._number = _number_in(folder)
            except OSError:
                _make_page(folder)

    def close(self) -> None:
        """Call no more."""
        if self._again is not None:
            self._again.cancel()

    def _keep_knobs(self, text: str) -> None:
        """Write down what was set; where that fails, a process that is started anew begins without."""
        try:
            with open_folder(self._run_folder, []) as folder:
                _write_whole(KNOBS, text.encode(), folder)
        except OSError as error:
            log.warning("orders.knobs_not_kept", folder=str(self._run_folder), error=str(error))

    def _call_for_change(self) -> None:
        """Have processes come for the change that is wanted, again and again until they have said what they can."""
        self.close()
        with suppress(NotAnswered):  # they are not heard, then
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
    """The orders to all programs of a node; `tell` is called when they say another thing of a change."""

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self._tell = tell
        self._replicas: dict[ReplicaId, ReplicaOrders] = {}
        self._wanted: Mapping[ReplicaId, Wanted] | None = None

    def want(self, wanted: Mapping[ReplicaId, Wanted]) -> None:
        """What is wanted of programs of this node now: of all of them."""
        self._wanted = wanted
        for replica, orders in self._replicas.items():
            orders.changes.want(wanted.get(replica, Wanted()))

    def said(self) -> dict[ReplicaId, tuple[MemberReport, ...]]:
        """What processes said of changes, by replica."""
        return {
            replica: members
            for replica, orders in self._replicas.items()
            if (members := orders.changes.members)
        }

    @contextmanager
    def open_to(self, replica: ReplicaId, run_folder: Path) -> Iterator[ReplicaOrders]:
        """The orders to a replica, which can be given while the context lasts."""
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
        """Raises NotAnswered: none can be given."""
        orders = self._replicas.get(replica)
        if orders is None:
            raise NotAnswered("its program is just beginning, or ending")
        return orders


@contextmanager
def _page(folder: int) -> Iterator[int]:
    """The page in a run folder, open. Raises OSError: there is none, or what has its name is something else.

    With the folder it was given to the program's user; from the first order on it is the agent's again.
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
    """A page that the programs may read. Raises OSError."""
    _write_whole(PAGE, (bytes(_NUMBER_BYTES) + _HEADER).ljust(_PAGE_BYTES, b"\0"), folder)


def _write_whole(name: str, content: bytes, folder: int) -> None:
    """A file that the programs may read, in the place of what has its name. Raises OSError."""
    new = f".{name}-new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
