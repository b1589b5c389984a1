"""Network namespaces created ahead, so that a start does not wait for the kernel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

import structlog

READY: Final = 8
"""Namespaces ready for the next sessions; refilled when half are used."""
_AFTER_S: Final = 0.05
"""Delay for the start that used one: both would wait for the same locks of the kernel."""
_PASSING: Final = (OSError, MemoryError)
"""Errors of a temporary shortage."""

log = structlog.get_logger()


class NamespacePool:
    """Hands out each of its namespaces once, as a descriptor owned by the caller. Thread-safe.

    None outlives this process: nothing else holds them.

    Args:
        make: yields new ones without end, in a thread of its own that ends afterwards.
        after_s: delay of a refill.
    """

    def __init__(self, make: Callable[[], Generator[int]], *, after_s: float = _AFTER_S) -> None:
        self._make = make
        self._after_s = after_s
        self._turn = threading.Lock()
        self._ready: list[int] = []
        self._is_refilling = False
        self._closed = threading.Event()

    def take(self) -> int | None:
        """Take a ready one; None: the caller creates its own, which takes no longer than waiting."""
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
        """Close the ready ones, and keep none from now on."""
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
        """Leave the retry to the next session; errors other than shortages are logged with traceback."""
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
