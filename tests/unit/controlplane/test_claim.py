"""A data folder and a store belong to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane import claim as claims
from controlplane.claim import Coordination, StartRefused, choose_coordination, claim
from controlplane.plane import Surroundings, cluster_in
from controlplane.store.interface import StoreUnavailable
from tests.unit.controlplane.rig import surroundings

CLUSTER = Coordination("http://127.0.0.1:2379")
INSIDE = Coordination("embedded")


@pytest.fixture
async def on():
    async with surroundings() as on:
        yield on


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


async def test_the_first_folder_has_the_store_for_good(on: Surroundings, tmp_path: Path) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    cluster_id = await claim(on, first, CLUSTER)
    assert await cluster_in(on.store) == cluster_id
    for _ in range(2):
        with pytest.raises(StartRefused, match="belongs to another data folder") as refused:
            await claim(on, second, CLUSTER)
        assert cluster_id in str(refused.value)
    assert list(second.iterdir()) == []
    assert await claim(on, first, CLUSTER) == cluster_id
    assert sorted(file.name for file in first.iterdir()) == ["cluster", "coordination"]


async def test_a_folder_keeps_to_its_store(on: Surroundings, tmp_path: Path) -> None:
    data = folder(tmp_path, "data")
    cluster_id = await claim(on, data, CLUSTER)
    async with surroundings() as empty:
        with pytest.raises(StartRefused, match="its store holds none"):
            await claim(empty, data, CLUSTER)
        other = await claim(empty, folder(tmp_path, "other"), CLUSTER)
        with pytest.raises(StartRefused, match=f"its store holds another one, {other}"):
            await claim(empty, data, CLUSTER)
    assert await claim(on, data, CLUSTER) == cluster_id


@pytest.mark.parametrize("step", ["ensure_cluster", "write_private"])
async def test_a_start_that_broke_off_is_taken_up(
    on: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Broken off before each step that another one follows."""
    data = folder(tmp_path, "data")
    real = getattr(claims, step)
    count = {"ensure_cluster": 1, "write_private": 3}[step]
    for survived in range(count):
        with monkeypatch.context() as patched:
            left = [survived]

            def breaking(*arguments: object, left: list[int] = left) -> object:
                if not left[0]:
                    raise StoreUnavailable("gone")
                left[0] -= 1
                return real(*arguments)

            patched.setattr(claims, step, breaking)
            with pytest.raises(StoreUnavailable):
                await claim(on, data, CLUSTER)
    assert await claim(on, data, CLUSTER) == await cluster_in(on.store)


async def test_a_store_inside_the_folder_is_the_folders_own(
    on: Surroundings, tmp_path: Path
) -> None:
    cluster_id = await claim(on, folder(tmp_path, "before"), INSIDE)
    assert await claim(on, folder(tmp_path, "after"), INSIDE) == cluster_id


async def test_what_was_tried_in_vain_binds_nobody(on: Surroundings, tmp_path: Path) -> None:
    data = folder(tmp_path, "data")
    assert choose_coordination("http://127.0.0.1:1", data).kind == "http://127.0.0.1:1"
    assert choose_coordination("embedded", data) == INSIDE
    await claim(on, data, INSIDE)
    assert choose_coordination("auto", data) == INSIDE
    with pytest.raises(StartRefused, match="was made with"):
        choose_coordination("http://127.0.0.1:1", data)
