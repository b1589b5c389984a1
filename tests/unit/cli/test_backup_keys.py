"""A backup takes the private keys of the control plane that it asks, where its user may read them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.cluster.backup import _keys_of


@pytest.mark.parametrize("of_platform", ["ours", "another"])
def test_keys_of_a_unit_are_found_beside_the_socket_that_is_asked(
    tmp_path: Path, of_platform: str
) -> None:
    data = tmp_path / "nsml/controlplane"
    data.mkdir(parents=True)
    (data / "cluster").write_text(of_platform)
    (data / "platform.key").write_bytes(b"key")
    app: Any = SimpleNamespace(
        environ={"NSML_DATA": str(tmp_path / "own")},
        context=SimpleNamespace(servers=[f"unix:{data}/socket"]),
    )
    keys, choices = _keys_of(app, "ours", None)
    assert keys == ({"platform.key": b"key"} if of_platform == "ours" else {})
    assert choices == {}
