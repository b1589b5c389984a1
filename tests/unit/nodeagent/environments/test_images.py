"""Whose the images are that an agent pulls: an engine's calls by hand, the rest is the real part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from nodeagent.engine import private_images
from nodeagent.engine.client import Engine, EngineUnreachable
from nodeagent.engine.images import MOST_CONFIGURATION_BYTES, StoredImage
from nodeagent.engine.pulls import Login, PullFailed, PullProblem, PullProgress
from nodeagent.environments.errors import EnvironmentFailed, ImageUnavailable
from nodeagent.environments.image_pulls import ImagePulls, pinned_name
from nodeagent.environments.image_settings import ImageSettings
from nodeagent.environments.images import Images
from nsml.packages.requirements import Requirements
from nsml.spec.images import parts_of

REFERENCE = "registry.lab:5000/kim/torch:2"


class Engines:
    """The images of an engine, by reference, and what was pulled; `kept`: also without a tag."""

    def __init__(self) -> None:
        self.here: dict[str, StoredImage] = {}
        self.kept: list[StoredImage] = []
        self.pulled: list[str] = []
        self.asked: list[str] = []
        self.refusal: PullFailed | None = None
        self.size_bytes = 0
        self.configuration_bytes = 0

    def find(self, _engine: Engine, reference: str) -> StoredImage | None:
        found = self.here.get(reference)
        for one in self.kept if found is None else ():
            if reference in {one.id, *one.sources}:
                found = one
        if found is None:
            return None
        names = [name for name, one in self.here.items() if one.id == found.id]
        return replace(found, names=names)

    def name(self, _engine: Engine, image_id: str, name: str) -> None:
        (self.here[name],) = (one for one in self.kept if one.id == image_id)

    def ask(self, _engine: Engine, reference: str, **_: object) -> None:
        self.asked.append(reference)
        if self.refusal is not None:
            raise self.refusal

    def pull(self, _engine: Engine, reference: str, **_: object) -> Iterator[PullProgress]:
        self.pulled.append(reference)
        if self.refusal is not None:
            raise self.refusal
        number = len(self.pulled)
        self.here[reference] = StoredImage(
            id=f"sha256:{number}",
            sources=[f"{parts_of(reference)[0]}@sha256:{number:064}"],
            size_bytes=self.size_bytes,
            configuration_bytes=self.configuration_bytes,
        )
        self.kept.append(self.here[reference])
        yield PullProgress()


def removing(removed: list[str]) -> Callable[..., bool]:
    """Removes images as far as a list says."""

    def remove(_engine: Engine, reference: str, *_: str, **__: str) -> bool:
        removed.append(reference)
        return True

    return remove


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines()
    for one in ("images", "image_pulls", "image_records"):
        monkeypatch.setattr(f"nodeagent.environments.{one}.find_image", engines.find)
    monkeypatch.setattr(private_images, "is_private", lambda *_: False)
    for one in ("begin", "end"):
        monkeypatch.setattr(private_images, one, lambda *_: None)
    monkeypatch.setattr(private_images, "name_image", engines.name)
    monkeypatch.setattr("nodeagent.environments.image_pulls.pull_image", engines.pull)
    monkeypatch.setattr("nodeagent.environments.image_pulls.ask_registry", engines.ask)
    return engines


def provided(folder: Path, *, always: bool) -> Images:
    """The images of an agent of which one session has asked for the reference."""
    settings = ImageSettings(always_pulls=always, allowed=("registry.lab:5000/*",))
    images = Images(folder / "images", Engine(folder / "socket"), settings, mark="m")
    provide(images)
    return images


def provide(
    images: Images,
    reference: str = REFERENCE,
    built_after: float = 0.0,
    logins: Mapping[str, Login] = MappingProxyType({}),
    use: Callable[[str], object] = lambda _: None,
) -> str:
    """What a session gets that requires no packages."""
    return images.provide(
        reference,
        Requirements(),
        lambda _: None,
        threading.Event(),
        owner="kim",
        use=use,
        built_after=built_after,
        logins=logins,
    )


@pytest.mark.parametrize("always", [False, True])
def test_what_was_pulled_may_be_removed(engine: Engines, tmp_path: Path, *, always: bool) -> None:
    assert len(provided(tmp_path, always=always).stored()) == 1
    stored = provided(tmp_path, always=always).stored()
    assert len(stored) == (2 if always else 1), "with what the tag named before"
    assert engine.pulled == [REFERENCE] * (2 if always else 1)


@pytest.mark.parametrize("always", [False, True])
def test_what_was_there_before_is_never_ours(
    engine: Engines, tmp_path: Path, *, always: bool
) -> None:
    pinned = f"registry.lab:5000/kim/torch@sha256:{'1' * 64}"
    engine.here[REFERENCE] = StoredImage(id="sha256:0", sources=[pinned])
    for _ in range(2):
        assert provided(tmp_path, always=always).stored() == {}
    assert engine.pulled == ([REFERENCE] * 2 if always else [])
    assert engine.asked == ([] if always else [pinned])


def test_what_was_kept_a_session_that_refreshes_is_pulled_again_once(
    engine: Engines, tmp_path: Path
) -> None:
    images = provided(tmp_path, always=False)
    submitted_at = time.time()
    ids = [provide(images, built_after=after) for after in (submitted_at, submitted_at, 0.0)]
    assert ids == ["sha256:2"] * 3, "its other attempts and replicas, and later sessions find it"
    assert engine.pulled == [REFERENCE] * 2


def test_a_refresh_leaves_what_was_there_before_as_it_is(engine: Engines, tmp_path: Path) -> None:
    pinned = f"registry.lab:5000/kim/torch@sha256:{'1' * 64}"
    engine.here[REFERENCE] = StoredImage(id="sha256:0", sources=[pinned])
    images = provided(tmp_path, always=False)
    assert provide(images, built_after=time.time()) == "sha256:0"
    assert (engine.pulled, engine.asked) == ([], [pinned])


@pytest.mark.parametrize("reference", ["nsml-base:latest", "nsml-base:2"])
def test_no_registry_is_asked_for_what_is_made_here(
    engine: Engines, tmp_path: Path, reference: str
) -> None:
    settings = ImageSettings(default=reference, always_pulls=True)
    images = Images(tmp_path / "images", Engine(tmp_path / "socket"), settings, mark="m")

    def ask() -> None:
        base, _ = images.resolve("", None)
        provide(images, base)

    with pytest.raises(EnvironmentFailed, match="no registry is asked"):
        ask()
    engine.here[reference] = StoredImage(id="i")
    ask()
    assert engine.pulled == []


def asks(folder: Path, reference: str, *allowed: str, always: bool = False) -> str:
    """What a session gets that names the image."""
    settings = ImageSettings(always_pulls=always, allowed=allowed)
    images = Images(folder / "images", Engine(folder / "socket"), settings, mark="m")
    base, _ = images.resolve(reference, None)
    return provide(images, base)


@pytest.mark.parametrize("always", [False, True])
def test_an_image_that_somebody_made_on_the_node_is_not_everybodys(
    engine: Engines, tmp_path: Path, *, always: bool
) -> None:
    engine.here["secret/model:1"] = StoredImage(id="sha256:s")
    with pytest.raises(EnvironmentFailed, match=r"came from no registry.*local:secret/model:1"):
        asks(tmp_path, "secret/model:1", "*", always=always)
    assert engine.pulled == [], "its name is not given to what a registry has under it"
    for allowed in ("local:secret/*", "local:*"):
        assert asks(tmp_path, "docker.io/secret/model:1", allowed, always=always) == "sha256:s"
    assert engine.pulled == []


def test_an_image_that_somebody_pulled_is_used_once_its_registry_has_confirmed_it(
    engine: Engines, tmp_path: Path
) -> None:
    pinned = f"lab/private@sha256:{'1' * 64}"
    image = StoredImage(id="sha256:p", sources=[f"other/name@sha256:{'2' * 64}", pinned])
    engine.here["lab/private:1"] = image
    engine.refusal = PullFailed(PullProblem.ABSENT)
    for _ in range(2):
        with pytest.raises(ImageUnavailable, match=r"cannot be pulled.*gives you no access"):
            asks(tmp_path, "lab/private:1", "*")
    engine.refusal = None
    for _ in range(2):
        assert asks(tmp_path, "lab/private:1", "*") == "sha256:p"
    assert engine.asked == [pinned] * 3, "by digest: nobody's name moves; and once it is known"
    engine.here["lab/private:1"] = replace(image, id="sha256:another")
    asks(tmp_path, "lab/private:1", "*")
    assert (len(engine.asked), engine.pulled) == (4, []), (
        "another image under that name is another question"
    )


def test_an_image_that_is_too_large_does_not_stay(
    engine: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(private_images, "remove_private", removing(removed))
    engine.size_bytes = 200_000_000_000
    with pytest.raises(EnvironmentFailed, match=r"has 200\.0 GB: at most 100\.0 GB on this"):
        asks(tmp_path, "lab/huge:1", "*")
    assert removed == ["lab/huge:1"]


def test_an_image_that_says_too_much_of_itself_does_not_stay(
    engine: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines repeat it in each answer: of 5 MB shims said that the engine did not answer, and the node was blamed."""
    removed: list[str] = []
    monkeypatch.setattr(private_images, "remove_private", removing(removed))
    engine.configuration_bytes = MOST_CONFIGURATION_BYTES + 1
    with pytest.raises(EnvironmentFailed, match="variables, labels and ports"):
        provided(tmp_path, always=False)
    assert removed == [REFERENCE]


@pytest.mark.parametrize("always", [False, True])
def test_a_pull_that_fails_leaves_what_somebody_else_put_there(
    engine: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, always: bool
) -> None:
    """An administrator loads the image meanwhile, or another agent of the engine has pulled it."""
    removed: list[str] = []
    monkeypatch.setattr(private_images, "remove_private", removing(removed))

    def pull(_engine: Engine, reference: str, **_: object) -> Iterator[PullProgress]:
        engine.here[reference] = StoredImage(id="sha256:loaded")
        yield PullProgress()
        raise PullFailed(PullProblem.UNANSWERED)

    monkeypatch.setattr("nodeagent.environments.image_pulls.pull_image", pull)
    with pytest.raises(EnvironmentFailed, match="cannot be reached"):
        asks(tmp_path, "lab/tool:1", "*", always=always)
    assert removed == []
    assert asks(tmp_path, "lab/tool:1", "*", "local:lab/*") == "sha256:loaded"


def test_the_mark_of_a_pull_that_was_killed_keeps_nobody_from_an_image(
    engine: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise EngineUnreachable("down")

    engine.refusal = PullFailed(PullProblem.UNANSWERED)
    with monkeypatch.context() as patch:
        patch.setattr(ImagePulls, "_break_off", unreachable)
        with pytest.raises(EnvironmentFailed, match="cannot be reached"):
            asks(tmp_path, "lab/tool:1", "*")
    (mark,) = (tmp_path / "images").glob("*.pulling")
    mark.with_name(f"{mark.stem}-{'0' * 16}.pulling").write_bytes(mark.read_bytes())
    engine.here["lab/tool:1"] = StoredImage(id="sha256:loaded")
    assert asks(tmp_path, "lab/tool:1", "*", "local:lab/*") == "sha256:loaded"
    assert list((tmp_path / "images").glob("*.pulling")) == []
    assert engine.pulled == ["lab/tool:1"], "it is not pulled over"


def test_a_private_image_of_another_agent_is_put_on_no_record_when_its_tag_is_renewed(
    engine: Engines, tmp_path: Path
) -> None:
    settings = ImageSettings(allowed=("registry.lab:5000/*",))
    first = Images(tmp_path / "a", Engine(tmp_path / "socket"), settings, mark="a")
    login = Login(registry="registry.lab:5000", user="kim", password="hush", version=1)
    private = provide(first, logins={login.registry: login})
    digest = engine.kept[0].sources[0]
    renewing = replace(settings, always_pulls=True)
    second = Images(tmp_path / "b", Engine(tmp_path / "socket"), renewing, mark="b")
    assert provide(second) != private
    assert second.stored() == {}, "nothing here is its own to remove"
    engine.refusal = PullFailed(PullProblem.ABSENT)
    restarted = Images(tmp_path / "b", Engine(tmp_path / "socket"), settings, mark="b")
    with pytest.raises(EnvironmentFailed):
        provide(restarted, digest)
    assert engine.asked == [digest], "its registry decides who may have it"


def test_a_renewed_tag_leaves_a_record_by_the_digest_that_its_sessions_use(
    engine: Engines, tmp_path: Path
) -> None:
    images = provided(tmp_path, always=False)
    digest = engine.kept[0].sources[0]
    mirrored = [f"mirror.lab/torch@sha256:{'9' * 64}", digest]
    engine.kept[0] = engine.here[REFERENCE] = replace(engine.here[REFERENCE], sources=mirrored)
    uses: list[str] = []
    provide(images, use=uses.append)
    provide(images, built_after=time.time())
    assert len(images.stored()) == 2
    assert set(images.stored()) <= set(uses), "a session that has no container yet keeps it"


def test_a_private_image_without_its_tag_is_on_record_by_all_its_digests(
    engine: Engines, tmp_path: Path
) -> None:
    settings = ImageSettings(allowed=("registry.lab:5000/*",))
    images = Images(tmp_path / "images", Engine(tmp_path / "socket"), settings, mark="m")
    login = Login(registry="registry.lab:5000", user="kim", password="hush", version=1)
    provide(images, logins={login.registry: login})
    (old,) = engine.kept
    mirrored = [f"mirror.lab/torch@sha256:{'9' * 64}", *old.sources]
    engine.kept[0] = engine.here[REFERENCE] = replace(old, sources=mirrored)
    provide(images, built_after=time.time(), logins={login.registry: login})
    assert len(images.stored()) == 3, "else the engine keeps it by the one that is left"


def test_names_of_one_image_are_one(engine: Engines, tmp_path: Path) -> None:
    names = ("python:3", "docker.io/python:3", "index.docker.io/library/python:3")
    assert {asks(tmp_path, name, "*") for name in names} == {"sha256:1"}
    assert engine.pulled == ["python:3"]
    for name in ("docker.io/nsml-base", "docker.io/library/nsml-base:latest"):
        with pytest.raises(EnvironmentFailed, match="no registry is asked"):
            asks(tmp_path, name, "*")
    for name in ("docker.io/library/nsml-env:x", "Registry.Lab/nsml-env:x"):
        with pytest.raises(EnvironmentFailed, match="not an image that a session may name"):
            asks(tmp_path, name, "*", "registry.lab/*")


def test_a_name_that_was_pulled_and_is_somebodys_image_by_now_is_theirs(
    engine: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr("nodeagent.environments.images.remove_private", removing(removed))
    monkeypatch.setattr("nodeagent.environments.image_records.image_used_at", lambda *_: 0.0)
    monkeypatch.setattr("nodeagent.environments.image_builds.tags_of", lambda *_: [])
    images = Images(tmp_path / "images", Engine(tmp_path / "socket"), ImageSettings(), mark="m")
    assert asks(tmp_path, "lab/tool:1", "*") == "sha256:1"
    engine.here["lab/tool:1"] = StoredImage(id="sha256:secret")
    for always in (False, True):
        with pytest.raises(EnvironmentFailed, match="came from no registry"):
            asks(tmp_path, "lab/tool:1", "*", always=always)
    (key,) = images.stored()
    assert images.remove(key, lambda: False)
    assert removed == [], "only what the agent pulled is its own to remove"
    assert images.stored() == {}
    engine.here["lab/other:1"] = StoredImage(id="sha256:old")
    record = tmp_path / "images" / "record.json"
    record.write_text('{"reference": "lab/other:1"}')
    assert images.remove("record", lambda: False), "a record of an earlier version"
    assert removed == ["lab/other:1"]


@pytest.mark.parametrize(
    ("reference", "sources", "expected"),
    [
        ("python", [f"python@sha256:{'1' * 64}"], f"python@sha256:{'1' * 64}"),
        ("kim/made", [], "sha256:i"),
        ("kim/tagged", [f"python@sha256:{'1' * 64}"], "sha256:i"),
    ],
)
def test_an_image_is_known_by_what_names_it_again(
    reference: str, sources: list[str], expected: str
) -> None:
    assert pinned_name(reference, StoredImage(id="sha256:i", sources=sources)) == expected


def test_who_asks_for_an_image_learns_its_digest(engine: Engines, tmp_path: Path) -> None:
    engine.here["python:3"] = StoredImage(id="sha256:i")
    images = Images(
        tmp_path / "images",
        Engine(tmp_path / "socket"),
        ImageSettings(default="python:3"),
        mark="m",
    )
    told: list[str] = []
    images.provide(
        "python:3", Requirements(), lambda _: None, threading.Event(), owner="kim",
        use=lambda _: None, pinned=told.append,
    )  # fmt: skip
    assert told == ["sha256:i"]
