"""Dockerfiles on a real engine: what is built, what is used again and by whom, and what a build can reach."""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from docker.errors import APIError

from nodeagent.engine.client import Engine
from nodeagent.engine.containers import containers_of, remove_container
from nodeagent.engine.images import builds_named, find_image, remove_image
from nodeagent.environments.dockerfile_builds import Recipe
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.image_settings import ImageSettings
from nodeagent.environments.images import Images
from tests.engines import required_engine, required_image
from tests.support.dockerfile_forms import FORMS, REFUSED, VARIABLES, WHOLE_FORMS


@dataclass
class Node:
    engine: Engine
    images: Images
    base: str
    mark: str
    code: Path
    used: list[str] = field(default_factory=list)

    def build(
        self,
        text: str,
        *,
        owner: str = "kim",
        images: Images | None = None,
        cancelled: threading.Event | None = None,
        **arguments: str,
    ) -> tuple[str, str]:
        """Id of the image, and the log."""
        (self.code / "Dockerfile").write_text(text.replace("BASE", self.base))
        said = bytearray()
        recipe = Recipe(folder=self.code, path="Dockerfile", arguments=arguments)
        image = (images or self.images).provide_built(
            recipe,
            said.extend,
            cancelled or threading.Event(),
            owner=owner,
            use=self.used.append,
        )
        return image, said.decode(errors="replace")

    def refuses(self, text: str, *, images: Images | None = None) -> str:
        with pytest.raises(EnvironmentFailed) as failed:
            self.build(text, images=images)
        return str(failed.value)

    def others(self, **settings: object) -> Images:
        return Images(
            self.images.folder,
            self.engine,
            ImageSettings(default=self.base, **settings),  # type: ignore[arg-type]
            mark=self.mark,
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    engine, _ = required_engine()
    base, mark = required_image(), uuid.uuid4().hex[:12]
    images = Images(tmp_path / "images", engine, ImageSettings(default=base), mark=mark)
    (tmp_path / "code").mkdir()
    node = Node(engine, images, base, mark, tmp_path / "code")
    yield node
    assert not builds_named(engine, f"nsml-build-{mark}")
    assert not containers_of(engine, mark)
    for name in builds_named(engine, f"nsml-build-{mark}"):
        remove_container(engine, name)
    for key in reversed(node.used):
        if find_image(engine, f"nsml-env:{key}"):
            remove_image(engine, f"nsml-env:{key}")


STAGES = """\
FROM BASE AS build
ARG WHO=world
ENV LD_LIBRARY_PATH=/opt/lib HELLO="hi $WHO"
WORKDIR /work/deep
RUN echo "$HELLO, $LD_LIBRARY_PATH" > said && ln -s said link && chmod 640 said
USER nobody
RUN id -un > /tmp/user
FROM BASE
ENV A=1
COPY --from=build /work/deep/ /tmp/user /got/
COPY --chown=1000:1001 --chmod=600 src/*.py one.txt /own/
COPY src /all
COPY one.txt /etc/renamed
COPY . /whole
RUN cd /got && cat said user && stat -c '%n %u:%g %a' /got/said /own/a.py /etc/renamed /tmp \\
    && readlink /got/link && cd / && find all whole own -type f | sort && cat /etc/renamed
ENV B=$A
"""


def test_stages_copies_and_variables_are_those_of_docker(node: Node) -> None:
    (node.code / "src" / "sub").mkdir(parents=True)
    (node.code / "src" / "a.py").write_text("a")
    (node.code / "src" / "sub" / "b.py").write_text("b")
    (node.code / "one.txt").write_text("one\n")
    (node.code / "left.key").write_text("out")
    (node.code / ".dockerignore").write_text("# no keys\n*.key\nsrc/sub\n!src/sub/b.py\n")
    (node.code / "link.txt").symlink_to("/etc/shadow")
    image, said = node.build(STAGES, WHO="kim")
    lines = said.splitlines()
    seen = lines[lines.index("hi kim, /opt/lib") : lines.index("one") + 1]
    assert seen == [
        *("hi kim, /opt/lib", "nobody"),
        *("/got/said 0:0 640", "/own/a.py 1000:1001 600", "/etc/renamed 0:0 644", "/tmp 0:0 1777"),
        "said",
        *("all/a.py", "all/sub/b.py", "own/a.py", "own/one.txt"),
        *("whole/.dockerignore", "whole/Dockerfile", "whole/one.txt"),
        *("whole/src/a.py", "whole/src/sub/b.py"),
        "one",
    ]
    stored = find_image(node.engine, image)
    assert stored is not None
    assert (stored.environment["A"], stored.environment["B"]) == ("1", "1")
    assert node.build(STAGES, WHO="kim") == (image, "")


def test_an_engine_reads_values_as_they_are_read_here(node: Node) -> None:
    def built(text: str) -> dict[str, str] | None:
        """Variables of what the engine's own builder makes; None: it refuses."""
        try:
            file = io.BytesIO(f"FROM {node.base}\n{text}\n".encode())
            said = [*node.engine.sdk.api.build(fileobj=file, decode=True, rm=True)]
        except APIError:
            return None
        ids = [one["aux"]["ID"] for one in said if "aux" in one]
        if any("error" in one for one in said) or not ids:
            return None
        image = find_image(node.engine, ids[-1])
        assert image is not None
        remove_image(node.engine, image.id)
        return dict(image.environment)

    def quoted(value: str) -> str:
        return '"' + value.replace('"', '\\"') + '"'

    known = " ".join(f"{name}={quoted(value)}" for name, value in VARIABLES.items())
    asked = {f"F{number}": text for number, text in enumerate(FORMS)}
    found = built(f"ENV {known}\nENV " + " ".join(f"{name}={asked[name]}" for name in asked))
    assert found is not None
    assert {text: found[name] for name, text in asked.items()} == FORMS
    whole = {f"W{number}": text for number, text in enumerate(WHOLE_FORMS)}
    found = built("\n".join([f"ENV {known}", *(f"ENV {name} {whole[name]}" for name in whole)]))
    assert found is not None
    assert {text: found[name] for name, text in whole.items()} == WHOLE_FORMS
    assert [text for text in REFUSED if built(f"ENV {known}\nENV A={text}") is not None] == []


def test_steps_are_used_again_by_their_user_alone(node: Node) -> None:
    text = "FROM BASE\nCOPY needs.txt /\nRUN head -c 8 /dev/urandom | od > /id\nCOPY . /app\n"
    (node.code / "needs.txt").write_text("numpy")
    first, said = node.build(text)
    assert "made before" not in said
    (node.code / "main.py").write_text("print(1)")
    second, said = node.build(text)
    assert (second != first, said.count("made before")) == (True, 2)
    other, said = node.build(text, owner="lee")
    assert (other not in {first, second}, "made before" in said) == (True, False)
    (node.code / "needs.txt").write_text("scipy")
    _, said = node.build(text)
    assert "made before" not in said


def test_only_steps_of_the_file_are_told_as_made_before(node: Node) -> None:
    text = "FROM BASE\nRUN head -c 8 /dev/urandom | od > /id\nENV A=1\n"
    node.build(text)
    _, said = node.build(f"{text}# the same steps\n")
    assert said.count("made before") == 1


def test_a_step_that_fails_ends_the_build_with_its_line(node: Node) -> None:
    text = (
        "FROM BASE\nENV A=1\nRUN echo fine && \\\n  echo '\x1b[31mERROR: no such thing' && exit 3\n"
    )
    failed = node.refuses(text)
    assert failed.startswith("Dockerfile, line 3, RUN echo fine && echo ")
    assert "no such thing" in failed
    assert "app.py is not in the folder" in node.refuses("FROM BASE\nCOPY app.py /\n")
    assert "Dockerfile, line 2: RUN --mount=type=secret" in node.refuses(
        "FROM BASE\nRUN --mount=type=secret,id=x true\n"
    )


def test_a_build_reaches_neither_devices_nor_rights_nor_networks(node: Node) -> None:
    _, said = node.build(
        "FROM BASE\nENV NVIDIA_VISIBLE_DEVICES=all LD_PRELOAD=/none.so\n"
        "RUN grep -E 'CapBnd|NoNewPrivs' /proc/self/status && echo gpu:$NVIDIA_VISIBLE_DEVICES\n"
        "RUN ls /sys/class/net && mknod /x c 1 5 || echo no device\n"
    )
    assert "CapBnd:\t00000000000000db" in said
    assert "NoNewPrivs:\t1" in said
    assert "gpu:void" in said
    assert "lo\n" in said
    assert "eth0" not in said
    assert "no device" in said


def test_a_build_is_kept_within_its_limits(node: Node) -> None:
    small = node.others(disk_bytes=1 << 20, memory_bytes=64 << 20)
    wrote = node.refuses(
        "FROM BASE\nRUN head -c 900000 /dev/zero > /a\nRUN head -c 900000 /dev/zero > /b\n",
        images=small,
    )
    assert "the build wrote" in wrote
    (node.code / "large").write_bytes(b"x" * (3 << 20))
    assert "the build wrote" in node.refuses("FROM BASE\nCOPY large /\n", images=small)
    slow = node.others(time_limit_s=1.0)
    assert "longer than 1 s" in node.refuses("FROM BASE\nRUN sleep 60\n", images=slow)


def test_a_build_can_be_cancelled(node: Node) -> None:
    cancelled = threading.Event()
    threading.Timer(1.0, cancelled.set).start()
    with pytest.raises(EnvironmentCancelled):
        node.build("FROM BASE\nRUN sleep 600\n", cancelled=cancelled)


def test_bases_are_images_that_a_session_may_name(node: Node) -> None:
    image, _ = node.build("FROM BASE\nRUN true\n")
    for name in (f"nsml-env:{node.used[-1]}", image, image.removeprefix("sha256:")):
        said = node.refuses(f"FROM {name}\n")
        assert "not an image that a session may name" in said or "not the name" in said
        said = node.refuses(f"FROM BASE\nCOPY --from={name} /etc /x\n")
        assert "session may name" in said or "neither a stage nor an image" in said
    assert "nsml-base:none is not on this node" in node.refuses("FROM nsml-base:none\n")
    private = node.others(allowed=("registry.lab/*",))
    assert "not among the images" in node.refuses("FROM docker.io/x/y\n", images=private)
