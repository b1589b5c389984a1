"""The images of a machine, as sessions may name them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nodeagent.environments.image_settings import ImageSettings
from nodeagent.environments.images import Images

DIGEST = "sha256:" + "a" * 64


def images(folder: Path, settings: ImageSettings, *listed: dict[str, Any]) -> Images:
    api = SimpleNamespace(images=lambda: [{"Id": "sha256:1", **one} for one in listed])
    engine: Any = SimpleNamespace(sdk=SimpleNamespace(api=api), socket=folder)
    return Images(folder, engine, settings, mark="m")


def test_they_go_by_each_of_their_names_but_those_that_no_session_may_use(tmp_path: Path) -> None:
    found = images(
        tmp_path,
        ImageSettings(aliases={"old/name": "lab/torch:2", "lost": "not/here"}),
        {"RepoTags": ["lab/torch:2"], "RepoDigests": [f"lab/torch@{DIGEST}"], "Size": 12},
        {"RepoTags": ["<none>:<none>"], "RepoDigests": None, "Size": 9},
        {"RepoTags": None, "RepoDigests": ["<none>@<none>"], "Size": 9},
        {"RepoTags": ["nsml-env:0123"], "Size": 9},
        {"RepoTags": ["small:latest"]},
        {"RepoTags": ["lab/theirs:1", "nsml-private:2"], "Id": "sha256:2"},
    )
    assert found.listed() == {
        "lab/torch:2": 12,
        f"lab/torch@{DIGEST}": 12,
        "old/name:latest": 12,
        "small:latest": 0,
    }
