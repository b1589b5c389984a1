"""The packages of sessions that name none, on a node with containers: had, listed, pinned and removed."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.platforms import contained_platform, without_its_images
from tests.e2e.programs import wait_for, write_program
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.in_process import Platform


@pytest.fixture
def mirror() -> Iterator[Path]:
    """The index of packages that the machine's pip is configured with: a folder."""
    place = Path("/opt" if os.access("/opt", os.W_OK) else "/var/tmp") / f"nsml-{uuid.uuid4().hex}"
    place.mkdir()
    make_wheel(place, "usual", "TEXT = 'old'")
    make_wheel(place, "own", "TEXT = 'own'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(place))
        yield place
    shutil.rmtree(place)


@pytest.fixture
def platform(mirror: Path) -> Iterator[Platform]:
    listed = mirror / "site.txt"
    listed.write_text("usual\n")
    contained = contained_platform()
    contained.environment["NSML_AGENT_DEFAULT_REQUIREMENTS"] = str(listed)
    with without_its_images(contained) as running:
        yield running


@pytest.mark.variant
@pytest.mark.long("builds and sessions on a real engine")
def test_sessions_without_an_image_have_the_default_packages(
    platform: Platform, mirror: Path, tmp_path: Path
) -> None:
    def listed() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(platform.nsml("env", "ls", "-j").stdout)[
            "items"
        ]
        return found

    (ahead,) = wait_for(listed, what="the image is there before anybody waits")
    assert (ahead["package_count"], ahead["sessions"]) == (1, [])
    code = write_program(tmp_path / "code", "import usual\nprint(usual.TEXT)\n")
    assert platform.nsml("run", "-f", cwd=code).stdout == "old\n"
    lock = platform.nsml("env", "lock", "@last").stdout
    assert lock.startswith("usual==1.0 --hash=")
    assert [one["key"] for one in listed()] == [ahead["key"]]

    make_wheel(mirror, "usual", "TEXT = 'new'", version="2.0")
    assert platform.nsml("env", "rm", str(ahead["key"]), "-y").returncode == 0
    forked = platform.nsml("fork", "@last", "-f")
    assert forked.stdout.endswith("old\n")
    assert "packages" not in forked.stderr
    assert platform.nsml("run", "-f", cwd=code).stdout.endswith("new\n"), "made by who comes first"

    both = write_program(code, "import own, usual\nprint(own.TEXT, usual.TEXT)\n")
    (code / "requirements.txt").write_text("#nsml: nsml/default_ml:cuda9\nown\n")
    assert platform.nsml("run", "-f", cwd=both).stdout.endswith("own new\n")
    image = platform.environment["NSML_AGENT_DEFAULT_IMAGE"]
    without = platform.nsml("run", "-f", "--image", image, cwd=both, check=False)
    assert "No module named 'usual'" in without.stdout
    sizes = {one["package_count"]: (one["bytes"], one["shared_bytes"]) for one in listed()}
    assert sizes.keys() == {1, 2}
    assert all(0 < shared <= size for size, shared in sizes.values())
