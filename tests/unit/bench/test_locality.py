"""The simulation of fetches: the same for the same seed, and less is fetched by who is told where things are."""

from __future__ import annotations

import random

import pytest

from bench.scheduler import locality


def play(seed: int, *, is_told: bool) -> dict[str, float]:
    return locality.Run(random.Random(seed), is_told=is_told).play()


def test_less_is_fetched_when_it_is_known_where_things_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "SESSIONS", 400)
    told, untold = (play(5, is_told=is_told) for is_told in (True, False))
    assert told == play(5, is_told=True)
    assert told["fetched_bytes"] < untold["fetched_bytes"]
    assert told["fetching_s"] < untold["fetching_s"]
