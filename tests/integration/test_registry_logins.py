"""Private images on a real engine: for whom what somebody's login pulled is used."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nodeagent.engine import private_images
from nodeagent.engine.client import Engine
from nodeagent.engine.images import find_image, remove_image
from nodeagent.engine.pulls import Login
from nodeagent.environments.dockerfile_builds import Recipe
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.image_pulls import ImagePulls
from nodeagent.environments.image_settings import ImageSettings
from nodeagent.environments.images import Images
from nsml.packages.requirements import Requirements
from tests.engines import required_engine, required_image
from tests.support.registry import Registry, private_registry

PASSWORD = "hush-4be1"


@dataclass
class Node:
    engine: Engine
    registry: Registry
    images: Images
    folder: Path
    others: Images
    """Of another agent of the same engine."""

    def login(self, password: str = PASSWORD, version: int = 1) -> dict[str, Login]:
        host = self.registry.reference.partition("/")[0]
        login = Login(registry=host, user="kim", password=password, version=version)
        return {host: login}

    def ask(
        self,
        owner: str,
        logins: Mapping[str, Login],
        image: str = "",
        *,
        built_after: float = 0.0,
        use: Callable[[str], object] = lambda _: None,
    ) -> str:
        said = bytearray()
        found = self.images.provide(
            image or self.registry.reference,
            Requirements(),
            said.extend,
            threading.Event(),
            owner=owner,
            use=use,
            built_after=built_after,
            logins=logins,
        )
        assert b"hush" not in said
        return found

    def refuses(self, owner: str, logins: Mapping[str, Login], image: str = "") -> str:
        with pytest.raises(EnvironmentFailed) as failed:
            self.ask(owner, logins, image)
        assert "hush" not in str(failed.value)
        return str(failed.value)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    engine, _ = required_engine()
    # an image of its own: that of other tests is everybody's on this engine
    with private_registry(engine, required_image(), password=PASSWORD) as registry:
        host = registry.reference.partition("/")[0]
        settings = ImageSettings(allowed=(f"{host}/*", "local:*"))
        marks = [uuid.uuid4().hex[:12] for _ in range(2)]
        images, others = (Images(tmp_path / mark, engine, settings, mark=mark) for mark in marks)
        yield Node(engine, registry, images, tmp_path, others)
        for mark in marks:
            assert private_images.begun(engine, mark) == set()


def test_an_image_that_one_login_pulled_is_nobody_elses(node: Node) -> None:
    image = node.ask("u.kim", node.login())
    digest = next(iter(find_image(node.engine, image).sources))  # type: ignore[union-attr]
    for name in ("", digest):  # by tag and by digest, with local:* allowed
        assert "gives you no access" in node.refuses("u.lee", {}, name)
        assert "gives you no access" in node.refuses("u.lee", node.login("wrong"), name)
    assert node.ask("u.kim", node.login()) == image
    assert node.ask("u.lee", node.login()) == image, "who shows the registry a login of its own"
    assert "gives you no access" in node.refuses("u.kim", {}), "logged out"
    assert "gives you no access" in node.refuses("u.kim", node.login("old", version=2))
    assert not [name for name in node.images.listed() if name.startswith(digest.split("/")[0])]


def test_a_dockerfile_begins_with_no_private_image_of_another(node: Node) -> None:
    node.ask("u.kim", node.login())
    name = node.registry.reference
    for text in (f"FROM {name}\n", f"ARG X={name}\nFROM $X\n"):
        code = node.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "Dockerfile").write_text(text)
        recipe = Recipe(folder=code, path="Dockerfile")
        with pytest.raises(EnvironmentFailed, match="gives you no access"):
            node.images.provide_built(
                recipe, len, threading.Event(), owner="u.lee", use=lambda _: None
            )


def test_a_login_makes_nothing_private_that_is_everybodys(node: Node, tmp_path: Path) -> None:
    host, access = next(iter(node.registry.credentials["auths"].items()))
    config = tmp_path / "config.json"
    config.write_text(f'{{"auths": {{"{host}": {{"auth": "{access["auth"]}"}}}}}}')
    settings = ImageSettings(allowed=(f"{host}/*",), credentials=config)
    images = Images(node.images.folder, node.engine, settings, mark="m")
    open_to_all = replace(node, images=images)
    image = open_to_all.ask("u.kim", node.login())
    assert open_to_all.ask("u.lee", {}) == image, "with the node's own credentials"
    digest = next(iter(find_image(node.engine, image).sources))  # type: ignore[union-attr]
    assert open_to_all.ask("u.kim", node.login(), digest) == image
    assert open_to_all.ask("u.max", {}, digest) == image


def test_an_image_that_one_login_pulled_is_nobody_elses_for_other_agents_of_the_engine(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(node, images=node.others)
    host = node.registry.reference.partition("/")[0]
    pull = ImagePulls._pull

    def looked_at(self: ImagePulls, *given: object) -> None:
        pull(self, *given)  # type: ignore[arg-type]
        monkeypatch.setattr(ImagePulls, "_pull", pull)
        # the engine has it, before the agent could say so
        assert "gives you no access" in other.refuses("u.lee", {})

    monkeypatch.setattr(ImagePulls, "_pull", looked_at)
    image = node.ask("u.kim", node.login())
    assert "gives you no access" in other.refuses("u.lee", {}), "though local:* is allowed"
    assert not [one for one in node.others.listed() if one.startswith(host)]
    assert other.ask("u.max", node.login()) == image
    assert "gives you no access" in other.refuses("u.lee", {})
    assert not [one for one in node.others.listed() if one.startswith(host)]
    node.engine.sdk.api.tag(image, "lab/copy", "1")
    assert "pulled with a user's login" in other.refuses("u.lee", {}, "lab/copy:1")
    remove_image(node.engine, "lab/copy:1")
    private = f"{private_images.PRIVATE}:{image.partition(':')[2]}"
    with pytest.raises(EnvironmentFailed, match="not an image that a session may name"):
        other.images.resolve(private, None)
    (key,) = (record.stem for record in node.images.folder.glob("*.json"))
    made = node.engine.sdk.api.create_container(image, ["true"])["Id"]
    try:
        assert not node.images.remove(key, lambda: False), "a container uses it"
        assert "gives you no access" in other.refuses("u.lee", {})
    finally:
        node.engine.sdk.api.remove_container(made)
    remove_image(
        node.engine, node.registry.reference
    )  # as an administrator who knows no other name
    assert find_image(node.engine, image) is not None
    assert node.images.remove(key, lambda: False)
    assert find_image(node.engine, image) is None, "nothing keeps what it has"


def test_what_a_renewed_tag_named_goes_once_nobody_has_it(node: Node) -> None:
    uses: list[str] = []
    old = node.ask("u.kim", node.login(), use=uses.append)
    rights = [*node.images.folder.glob("*.rights")]
    node.registry.renew()
    new = node.ask("u.kim", node.login(), built_after=time.time())
    assert new != old
    (key,) = (
        one.stem
        for one in node.images.folder.glob("*.json")
        if json.loads(one.read_bytes())["id"] == old
    )
    assert key in uses, "a session that has it, but no container yet, keeps it"
    assert key in node.images.stored(), "as any that goes when the disk needs the room"
    assert "gives you no access" in node.refuses("u.lee", {})
    made = node.engine.sdk.api.create_container(old, ["true"])["Id"]
    try:
        assert not node.images.remove(key, lambda: False), "a container uses it"
        assert find_image(node.engine, old) is not None
    finally:
        node.engine.sdk.api.remove_container(made)
    # as earlier versions left it
    (node.images.folder / f"{key}.json").unlink()
    node.images.tidy()
    assert key in node.images.stored()
    assert node.images.remove(key, lambda: False)
    assert find_image(node.engine, old) is None
    assert not rights[0].exists()
    assert node.ask("u.kim", node.login()) == new


def test_what_an_image_is_built_upon_is_removed_after_it(node: Node) -> None:
    old = node.ask("u.kim", node.login())
    (key,) = (record.stem for record in node.images.folder.glob("*.json"))
    api, name = node.engine.sdk.api, f"nsml-test-{uuid.uuid4().hex[:8]}"
    made = api.create_container(old, ["true"])["Id"]
    api.commit(made, name, "1")
    api.remove_container(made)
    try:
        assert not node.images.remove(key, lambda: False)
        assert key in node.images.stored()
    finally:
        remove_image(node.engine, f"{name}:1")
    assert node.images.remove(key, lambda: False)
    assert find_image(node.engine, old) is None


def forget(node: Node) -> None:
    """As if its image had never been here."""
    image = find_image(node.engine, node.registry.reference)
    assert image is not None
    remove_image(node.engine, f"{private_images.PRIVATE}:{image.id.partition(':')[2]}")
    remove_image(node.engine, node.registry.reference)
    for rights in node.images.folder.glob("*.rights"):
        rights.unlink()


def test_what_a_broken_off_pull_left_is_nobodys(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = ImagePulls._pull

    def cancelled(self: ImagePulls, *given: object) -> None:
        pull(self, *given)  # type: ignore[arg-type]
        raise EnvironmentFailed("cancelled just then")

    name = node.registry.reference
    monkeypatch.setattr(ImagePulls, "_pull", cancelled)
    assert "just then" in node.refuses("u.kim", node.login())
    assert find_image(node.engine, name) is not None, "not surely of this pull"
    monkeypatch.setattr(ImagePulls, "_pull", pull)
    assert "gives you no access" in node.refuses("u.lee", {}), "though local:* is allowed"
    forget(node)

    def refused(*_: object) -> None:
        raise EnvironmentFailed("too large")

    with monkeypatch.context() as patch:
        patch.setattr(ImagePulls, "_refuse_large", refused)
        assert "too large" in node.refuses("u.kim", node.login())
    assert find_image(node.engine, name) is None

    def while_another_pulls(self: ImagePulls, *given: object) -> None:
        monkeypatch.setattr(ImagePulls, "_pull", pull)
        node.ask("u.kim", node.login())
        (key,) = (record.stem for record in node.images.folder.glob("*.json"))
        assert not node.images.remove(key, lambda: False), "somebody pulls it"
        cancelled(self, *given)

    monkeypatch.setattr(ImagePulls, "_pull", while_another_pulls)
    assert "just then" in node.refuses("u.lee", node.login())
    image = find_image(node.engine, name)
    assert image is not None, "somebody else has pulled it meanwhile"
    assert node.ask("u.kim", node.login()) == image.id
    assert "gives you no access" in node.refuses("u.max", {})


def test_what_a_killed_pull_left_is_nobodys(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pull, name = ImagePulls._pull, node.registry.reference

    class Killed(BaseException):
        """As kill -9, nothing is done after it."""

    def killed(self: ImagePulls, *given: object) -> None:
        pull(self, *given)  # type: ignore[arg-type]
        raise Killed

    def leave() -> Images:
        with monkeypatch.context() as patch:
            patch.setattr(ImagePulls, "_pull", killed)
            patch.setattr(ImagePulls, "_break_off", lambda *_: None)
            with pytest.raises(Killed):
                node.ask("u.kim", node.login())
        assert find_image(node.engine, name) is not None
        return node.images

    leave()
    other = replace(node, images=node.others)
    assert "gives you no access" in other.refuses("u.lee", {}), "of another agent of the engine"
    assert "gives you no access" in node.refuses("u.lee", {}), "though local:* is allowed"
    node.ask("u.kim", node.login())
    assert "gives you no access" in node.refuses("u.lee", {})
    forget(node)
    leave().tidy()
    assert "gives you no access" in other.refuses("u.lee", {})
    assert list(node.images.folder.glob("*.pulling")) == []
    assert "gives you no access" in node.refuses("u.lee", {})
