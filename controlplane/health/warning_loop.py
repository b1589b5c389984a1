"""Detects slow or hidden failures, on every control plane, and maintains their conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.conditions import ConditionName
from controlplane.health import warnings
from controlplane.store.interface import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from controlplane.state.conditions import Conditions
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock, Offload

LOOK_S: Final = 5.0
FILES_S: Final = 600.0
"""Between two checks of certificate files."""
READ_AT_START: Final = frozenset({"etcd_ca", "etcd_certificate", "s3_ca"})
"""Settings with files that are loaded only at the start; PostgreSQL's are read at each connection."""

_log = structlog.get_logger()

Looks = tuple[tuple[ConditionName, "Callable[[], warnings.Found]"], ...]


class Warnings:
    """The loop.

    Args:
        looks: checks of in-memory state, by the condition that they set.
        ends: of nodes' certificates and of the authority's, as for `warnings.ending_certificates`.
        files: certificates of others, by their settings.
        run: runs reads of files.
    """

    def __init__(
        self,
        conditions: Conditions,
        store: KeyValueStore,
        *,
        looks: Looks,
        ends: Callable[[], tuple[Mapping[str, float], Mapping[str, float]]],
        files: Mapping[str, Path],
        run: Offload,
        wall: Clock,
        clock: Clock,
    ) -> None:
        self._conditions = conditions
        self._store = store
        self._looks = looks
        self._ends = ends
        self._files = dict(files)
        self._run = run
        self._wall = wall
        self._clock = clock
        self._of_files: dict[str, float] = {}
        self._read_at = float("-inf")

    async def run(self) -> NoReturn:
        """Check every few seconds, until cancelled."""
        while True:
            await self._look()
            await self._clock.sleep(LOOK_S)

    async def _look(self) -> None:
        for name, found in self._looks:
            self._conditions.set_all(name, found())
        try:
            away = await self._store.members_away()
        except StoreError:
            away = {}  # a store without any answer is a condition of its own
        self._conditions.set_all(ConditionName.STORE_MEMBER_AWAY, away)
        if self._files and self._clock.monotonic() >= self._read_at + FILES_S:
            self._read_at = self._clock.monotonic()
            read = await self._run(self._read)
            # A replaced file has no effect before its reader restarts.
            in_use = {one: end for one, end in self._of_files.items() if one in READ_AT_START}
            self._of_files = read | in_use
        nodes, own = self._ends()
        ending = warnings.ending_certificates(nodes, {**own, **self._of_files}, self._wall.time())
        self._conditions.set_all(ConditionName.CERTIFICATE_ENDING, ending)

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, file in self._files.items():
            try:
                found[name] = warnings.file_end(file)
            except (OSError, ValueError) as error:
                _log.warning("certificate.unread", setting=name, reason=str(error))
        return found
