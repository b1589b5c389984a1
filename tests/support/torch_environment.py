"""An environment with torch and readers of S3 that train with it, apart from the one that the tests run in.

Torch is large, loads for seconds and would change what other tests of a worker see: programs of tests run in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

_FOLDER: Final = Path(__file__).parents[2] / ".torch"
NEWER_LITDATA: Final = _FOLDER / "newer-litdata"
"""A folder for `sys.path` with a version of litdata that reads with obstore."""
REPORTERS: Final = _FOLDER / "reporters"
"""A folder for PYTHONPATH with libraries that report elsewhere: tests/reporters-requirements.txt."""
OLDEST_WANDB: Final = _FOLDER / "oldest-wandb"
"""One to be before it, with the oldest supported version of wandb."""
RAY: Final = _FOLDER / "ray"
"""A folder for PYTHONPATH with Ray, its Tune and its Train."""


_NEWER_PROTOBUF: Final = ("google", "protobuf", "tensorboard", "wandb")
"""Packages that the oldest version of wandb cannot be with: it has an older protobuf."""


def oldest_wandb(folder: Path) -> list[Path]:
    """Return entries for PYTHONPATH: the oldest version of wandb, and the other libraries, linked in `folder`."""
    others = folder / "others"
    others.mkdir()
    for one in REPORTERS.iterdir():
        if not one.name.startswith(_NEWER_PROTOBUF):
            (others / one.name).symlink_to(one)
    return [OLDEST_WANDB, others]


def smaller(folder: Path, *without: str) -> tuple[str, Path]:
    """Return an interpreter and an entry for PYTHONPATH that lack some packages, which others import for seconds.

    Args:
        folder: where the environment is linked, unless it is there from an earlier call.
        without: how names of what is left out begin.
    """
    original = Path(require_torch()).parents[1]
    [packages] = original.glob("lib/python3*/site-packages")
    made, reporters = folder / "environment", folder / "environment/reporters"
    python = made / "bin/python"
    if not made.exists():
        linked = made / packages.relative_to(original)
        for target, source in ((linked, packages), (reporters, REPORTERS)):
            target.mkdir(parents=True)
            for one in source.iterdir():
                if not one.name.startswith(without):
                    (target / one.name).symlink_to(one)
        python.parent.mkdir()
        python.symlink_to((original / "bin/python").resolve())
        (made / "pyvenv.cfg").symlink_to(original / "pyvenv.cfg")
    return str(python), reporters


def require_torch() -> str:
    """Return its interpreter. NSML_REQUIRE_TORCH=1 makes a missing one a failure."""
    if not (_FOLDER / ".complete").exists():
        reason = "no torch: make torch (needs a build for CPUs, 2.8 GB)"
        if os.environ.get("NSML_REQUIRE_TORCH") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return str(_FOLDER / "bin/python")
