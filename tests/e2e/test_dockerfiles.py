"""Dockerfiles and private images through the whole product: a registry, an engine, users with and without a login."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.platforms import contained_platform, user_of
from tests.e2e.programs import write_program
from tests.engines import required_engine, required_image
from tests.support.in_process import Platform
from tests.support.registry import Registry, private_registry

PASSWORD = "hush-51aa"


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    engine, _ = required_engine()
    with private_registry(engine, required_image(), password=PASSWORD) as running:
        yield running


@pytest.fixture(scope="module")
def platform(registry: Registry) -> Iterator[Platform]:
    contained = contained_platform()
    host = registry.reference.partition("/")[0]
    contained.environment |= {"NSML_AGENT_ALLOWED_IMAGES": f"{host}/*"}
    with contained as running:
        yield running


@pytest.mark.long("builds, pulls and sessions on a real engine")
def test_a_private_base_is_built_upon_by_those_whose_login_has_it(
    platform: Platform, registry: Registry, tmp_path: Path
) -> None:
    code = write_program(tmp_path / "code", "print(open('/made').read())\n")
    recipe = f"FROM {registry.reference}\nARG WHO\nRUN echo made for $WHO > /made\n"
    (code / "Dockerfile").write_text(recipe)
    words = ["--dockerfile", "Dockerfile", "--build-arg", "WHO=kim"]
    refused = platform.nsml("image", "build", *words[2:], cwd=code, check=False)
    assert "gives you no access" in refused.stdout + refused.stderr
    assert refused.returncode
    host = registry.reference.partition("/")[0]
    login = ["image", "login", host, "-u", "kim", "--from-env", "TOKEN"]
    said = platform.nsml(*login, environment={"TOKEN": PASSWORD})
    assert PASSWORD not in said.stdout + said.stderr
    built = platform.nsml("image", "build", *words[2:], cwd=code)
    assert "Step 3/3: RUN echo made for $WHO > /made" in built.stdout
    assert "built sha256:" in built.stdout
    (node,) = json.loads(platform.nsml("node", "ls", "-j").stdout)["items"]
    ahead = platform.nsml("image", "build", *words[2:], "--node", node["name"], cwd=code)
    image = built.stdout.rpartition("built ")[2].split()[0]
    shown = image.removeprefix("sha256:")[:12]
    assert f"image {shown} was there" in ahead.stderr, "the session has built it"
    again = platform.nsml("run", "-f", "-g", "0", *words, cwd=code)
    assert again.stdout == "made for kim\n\n"
    lee = user_of(platform, "lee", tmp_path)
    image = json.loads(platform.nsml("image", "pull", registry.reference, "-j").stdout)
    digest = image["items"][0]["image"]
    for name in (registry.reference, digest):
        others = platform.nsml(
            *("run", "-f", "-g", "0", "--image", name, "--argv", "--no-code", "--", "true"),
            check=False,
            environment=lee,
        )
        assert "gives you no access" in others.stdout + others.stderr
        assert others.returncode
    pulled = platform.nsml("image", "pull", registry.reference, "-j", check=False, environment=lee)
    assert "gives you no access" in pulled.stdout
    assert registry.reference not in platform.nsml("image", "ls").stdout
