from pathlib import Path

import pytest

from controlplane.store.open import open_store
from controlplane.store.tables import Table
from nsml.common.clock import SystemClock
from tests.contract.store_engines import put
from tests.support.etcd import etcd_in


async def test_one_door_to_every_engine(tmp_path: Path) -> None:
    process = etcd_in(tmp_path / "etcd")
    process.start()
    try:
        await process.ready()
        for where in (":memory:", tmp_path / "store.db", process.endpoint):
            async with open_store(where, clock=SystemClock()) as store:
                await put(store, "a", b"1")
                item = await store.get("a")
                assert item is not None
                assert item.value == b"1"
    finally:
        await process.stop()


@pytest.mark.parametrize("prefix", ["", "/", "sessions"])
def test_a_prefix_that_could_begin_anothers_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="slash"):
        Table(prefix, encode=bytes, decode=bytes)
