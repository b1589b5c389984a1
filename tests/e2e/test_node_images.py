"""`nsml image pull` and `rm` through the whole product: a registry, an engine, sessions that use what is pulled."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.platforms import contained_platform, user_of
from tests.e2e.programs import wait_for, write_program
from tests.engines import required_engine, required_image
from tests.support.in_process import Platform
from tests.support.registry import Registry, registry_of


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    engine, _ = required_engine()
    with registry_of(engine, required_image(), password="hushhush") as running:
        yield running


@pytest.fixture(scope="module")
def platform(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    access = tmp_path_factory.mktemp("access") / "registry.json"
    access.write_text(json.dumps(registry.credentials))
    contained = contained_platform()
    host = registry.reference.partition("/")[0]
    contained.environment |= {
        "NSML_AGENT_REGISTRY_CONFIG": str(access),
        "NSML_AGENT_ALLOWED_IMAGES": f"{host}/*",
    }
    with contained as running:
        yield running


def results(listed: str) -> list[tuple[str, str]]:
    return [(row["result"], row["why"]) for row in json.loads(listed)["items"]]


def test_an_image_is_pulled_before_a_session_needs_it_and_removed_when_none_does(
    platform: Platform, registry: Registry, tmp_path: Path
) -> None:
    image = registry.reference
    pulled = platform.nsml("image", "pull", image, "-j")
    (row,) = json.loads(pulled.stdout)["items"]
    assert (row["result"], row["why"]) == ("pulled", "")
    assert row["image"].startswith(f"{image.rpartition(':')[0]}@sha256:")
    assert row["bytes"] > 1 << 20
    assert "hush" not in pulled.stderr + pulled.stdout
    assert results(platform.nsml("image", "pull", image, "-j").stdout) == [("present", "")]

    def listed() -> bool:
        items = json.loads(platform.nsml("image", "ls", "-j").stdout)["items"]
        return any(one["name"] == image for one in items)

    wait_for(listed, what="the image is listed")
    code = write_program(
        tmp_path / "code",
        "import getpass, os, time\nprint(f'{getpass.getuser()} {os.getuid()}')\ntime.sleep(600)\n",
    )
    platform.nsml("run", "--image", image, cwd=code)

    def logged() -> str:
        said = platform.nsml("logs", "@last").stdout
        return said if "\n" in said else ""

    said = wait_for(logged, what="it runs")
    assert re.fullmatch(r"(root 0|nsml \d+)\n", said), said
    kept = platform.nsml("image", "rm", image, "-y", "-j", check=False)
    assert results(kept.stdout) == [
        ("kept", "a session or container uses it, or it is being pulled")
    ]
    assert kept.returncode == 1
    platform.nsml("stop", "@last")

    def removed() -> bool:
        done = platform.nsml("image", "rm", image, "-y", "-j", check=False)
        return results(done.stdout)[0][0] == "removed"

    wait_for(removed, what="the image is removed when no session uses it")
    wait_for(lambda: not listed(), what="the image is listed no more")
    assert platform.nsml("image", "rm", image, "-y", check=False).returncode == 5


def test_what_a_session_could_not_have_is_not_pulled_either(
    platform: Platform, registry: Registry
) -> None:
    host = registry.reference.partition("/")[0]
    absent = platform.nsml("image", "pull", f"{host}/lab/base@sha256:{'0' * 64}", "-j", check=False)
    assert absent.returncode == 1
    assert "cannot be pulled" in results(absent.stdout)[0][1]
    for name in ("python:3.12", "127.0.0.1:1/lab/x:1"):
        refused = platform.nsml("image", "pull", name, "-j", check=False)
        ((result, why),) = results(refused.stdout)
        assert (refused.returncode, result) == (1, "failed")
        assert "allowed_images" in why


def test_removing_is_for_administrators(
    platform: Platform, registry: Registry, tmp_path: Path
) -> None:
    lee = user_of(platform, "lee", tmp_path)
    image = registry.reference
    platform.nsml("image", "pull", image, environment=lee)
    node = platform.json("node", "ls")["items"][0]["name"]
    denied = platform.nsml("image", "rm", image, "--node", node, "-y", check=False, environment=lee)
    assert denied.returncode == 4
    rows = platform.json("admin", "audit")["items"]
    assert any(row["method"].endswith("PullImage") and row["actor"] == "lee" for row in rows)
