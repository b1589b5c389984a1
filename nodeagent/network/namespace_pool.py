"""Network namespaces made ahead, so that a start takes one and does not wait for the kernel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

import structlog

READY: Final = 8
"""Namespaces that are kept for the next sessions; more are made once half of them are gone."""
_AFTER_S: Final = 0.05
"""The start that took the last of one half goes first: both would wait for the same locks of the kernel."""
_PASSING: Final = (OSError, MemoryError)
"""The system is short of something."""

log = structlog.get_logger()


class NamespacePool:
    """Gives each of its namespaces away once, as a descriptor that is the taker's. Used by several threads.

    None is left behind by whatever ends this process: nothing else holds them.

    Args:
        make: gives new ones without end, in a thread that does nothing else and ends afterwards.
        after_s: how long that waits once half are gone.
    """

    def __init__(self, make: Callable[[], Generator[int]], *, after_s: float = _AFTER_S) -> None:
        self._make = make
        self._after_s = after_s
        self._turn = threading.Lock()
        self._ready: list[int] = []
        self._is_refilling = False
        self._closed = threading.Event()

    def take(self) -> int | None:
        """One that is ready; None: the caller makes its own, which takes no longer than to wait for one."""
        with self._turn:
            descriptor = self._ready.pop() if self._ready else None
            begins = (
                len(self._ready) <= READY // 2
                and not self._is_refilling
                and not self._closed.is_set()
            )
            self._is_refilling |= begins
        if begins:
            self._begin()
        return descriptor

    def close(self) -> None:
        """End those that are ready; none is kept from now on."""
        with self._turn:
            self._closed.set()
            ready, self._ready = self._ready, []
        for descriptor in ready:
            os.close(descriptor)

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._refill, name="nsml-networks", daemon=True).start()
        except RuntimeError as error:  # no room for another thread
            self._give_up(error)

    def _refill(self) -> None:
        self._closed.wait(self._after_s)
        try:
            with closing(self._make()) as made:
                while self._wants_more():
                    self._keep(next(made))
        except Exception as error:  # noqa: BLE001 - whatever it was, the next session tries again
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Leave it to the next session to try again; of what is no fault of the system the log has the traceback."""
        fault = None if isinstance(error, _PASSING) else error
        log.warning("network.none_ready", reason=str(error) or repr(error), exc_info=fault)
        with self._turn:
            self._is_refilling = False

    def _wants_more(self) -> bool:
        with self._turn:
            self._is_refilling = len(self._ready) < READY and not self._closed.is_set()
            return self._is_refilling

    def _keep(self, descriptor: int) -> None:
        with self._turn:
            if not self._closed.is_set():
                self._ready.append(descriptor)
                return
        os.close(descriptor)
