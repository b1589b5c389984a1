"""What goes wrong slowly: certificates in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.access.authority import make_authority
from controlplane.health.warning_loop import FILES_S, Warnings
from controlplane.state.conditions import Conditions
from nsml.common.clock import SystemClock, inline
from tests.unit.controlplane.rig import surroundings


class Ahead(SystemClock):
    """A clock that tests move forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Past(SystemClock):
    def time(self) -> float:
        return super().time() - 85 * 86_400.0


async def test_a_file_that_is_replaced_is_good_once_it_is_in_use(tmp_path: Path) -> None:
    """Those of etcd and the bucket are read at the start alone, so that the old ones end connections still."""
    ending, fresh = (
        make_authority(one).issue_server(["x"]).chain for one in (Past(), SystemClock())
    )
    files = {
        name: tmp_path / name for name in ("etcd_certificate", "s3_ca", "history (sslrootcert)")
    }
    for file in files.values():
        file.write_bytes(ending)
    clock: Any = Ahead()
    async with surroundings() as on:
        conditions = Conditions(clock)
        loop = Warnings(
            conditions,
            on.store,
            looks=(),
            ends=lambda: ({}, {}),
            files=files,
            run=inline,
            wall=clock,
            clock=clock,
        )
        await loop._look()
        assert {one.subject for one in conditions.standing()} == set(files)
        for file in files.values():
            file.write_bytes(fresh)
        clock.ahead_s = FILES_S + 1
        await loop._look()
        assert {one.subject for one in conditions.standing()} == {"etcd_certificate", "s3_ca"}
