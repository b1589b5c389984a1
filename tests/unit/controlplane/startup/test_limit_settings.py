"""Limits as an operator sets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.domain.limits import UserLimits
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, SeriesQuery, StreamKey
from controlplane.startup.config import SettingsError, read_settings
from nsml.common.clock import inline
from tests.unit.controlplane.workbench import HandClock


def test_the_defaults_are_those_of_the_limits(tmp_path: Path) -> None:
    """One of each, and no two that differ."""
    path = tmp_path / "controlplane.toml"
    path.write_text('data = "d"\n')
    assert read_settings(path, {}).limits == UserLimits()


def test_limits_are_set_by_file_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "controlplane.toml"
    path.write_text('data = "d"\nuser_sessions = 7\nfloor_bytes = 0\n')
    settings = read_settings(path, {"NSML_CONTROLPLANE_USER_STORE_SHARE": "0.25"})
    assert (settings.limits.sessions, settings.limits.store_share) == (7, 0.25)
    assert settings.floor_bytes == 0


@pytest.mark.parametrize(
    "line",
    [
        "user_sessions = -1",
        "user_store_share = 1.5",
        "user_write_bytes_per_s = 0",
        "floor_bytes = -1",
    ],
)
def test_limits_that_make_no_sense_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "controlplane.toml"
    path.write_text(f'data = "d"\n{line}\n')
    with pytest.raises(SettingsError, match=line.partition(" ")[0]):
        read_settings(path, {})


@pytest.mark.parametrize(
    "name", ["user_sessions", "floor_bytes", "etcd_quota_bytes", "user_streams"]
)
def test_the_page_has_every_setting(name: str) -> None:
    page = Path(__file__).resolve().parents[4] / "docs/limits.md"
    assert f"`{name}`" in page.read_text()


async def test_the_number_of_metric_names_is_the_operators() -> None:
    """What is beyond is counted as left out; nothing of it is lost from the reports."""
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline, metric_names=3)
    values = {f"m{number}": 1.0 for number in range(10)}
    record = json.dumps({"kind": "metric", "time": 1.0, "step": 1.0, "values": values}).encode()
    stream = StreamKey("s1", 1, 0, Channel.METRIC)
    await history.streams.append([Chunk(stream=stream, first=1, last=1, records=(record,))])
    assert len(await history.streams.metric_counts("s1")) == 3
    page = await history.series.read("s1", SeriesQuery(width=10))
    assert (len(page.series), page.left_out) == (3, 7)
    points = await history.streams.read_metrics("s1")
    assert len(points.points) == 10
    await history.close()
