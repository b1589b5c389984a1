"""Whose the images are that an agent pulls: an engine's calls by hand, the rest is the real part."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.engine.client import Engine
from nodeagent.engine.images import PullProgress, StoredImage
from nodeagent.environments.builds import EnvironmentFailed
from nodeagent.environments.images import Images, ImageSettings
from nodeagent.environments.requirements import Requirements

REFERENCE = "registry.lab:5000/kim/torch:2"


class Engines:
    """The images of an engine, by reference, and what was pulled."""

    def __init__(self) -> None:
        self.here: dict[str, StoredImage] = {}
        self.pulled: list[str] = []

    def find(self, _engine: Engine, reference: str) -> StoredImage | None:
        return self.here.get(reference)

    def pull(self, _engine: Engine, reference: str, **_: object) -> Iterator[PullProgress]:
        self.pulled.append(reference)
        self.here[reference] = StoredImage(id=f"sha256:{len(self.pulled)}")
        yield PullProgress()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines()
    monkeypatch.setattr("nodeagent.environments.images.find_image", engines.find)
    monkeypatch.setattr("nodeagent.environments.images.pull_image", engines.pull)
    return engines


def provided(folder: Path, *, always: bool) -> Images:
    """The images of an agent of which one session has asked for the reference."""
    settings = ImageSettings(always_pulls=always)
    images = Images(folder / "images", Engine(folder / "socket"), settings, mark="m")
    images.provide(REFERENCE, Requirements(), lambda _: None, threading.Event(), use=lambda _: None)
    return images


@pytest.mark.parametrize("always", [False, True])
def test_what_was_pulled_may_be_removed(engine: Engines, tmp_path: Path, *, always: bool) -> None:
    assert len(provided(tmp_path, always=always).stored()) == 1
    assert len(provided(tmp_path, always=always).stored()) == 1
    assert engine.pulled == [REFERENCE] * (2 if always else 1)


@pytest.mark.parametrize("always", [False, True])
def test_what_was_there_before_is_never_ours(
    engine: Engines, tmp_path: Path, *, always: bool
) -> None:
    engine.here[REFERENCE] = StoredImage(id="sha256:0")
    for _ in range(2):
        assert provided(tmp_path, always=always).stored() == {}
    assert engine.pulled == [REFERENCE] * (2 if always else 0)


@pytest.mark.parametrize("reference", ["nsml-base:latest", "nsml-base:2"])
def test_no_registry_is_asked_for_what_is_made_here(
    engine: Engines, tmp_path: Path, reference: str
) -> None:
    settings = ImageSettings(default=reference, always_pulls=True)
    images = Images(tmp_path / "images", Engine(tmp_path / "socket"), settings, mark="m")

    def ask() -> None:
        base, _ = images.resolve("", None)
        images.provide(base, Requirements(), lambda _: None, threading.Event(), use=lambda _: None)

    with pytest.raises(EnvironmentFailed, match="no registry is asked"):
        ask()
    engine.here[reference] = StoredImage(id="i")
    ask()
    assert engine.pulled == []
