"""Keep the code of a released version, for the tests of upgrades.

    python -m tools.keep_version COMMIT

writes tests/upgrade/previous.tar.xz: the packages of that commit as they were, without what only
type checkers read, and pyproject.toml, which names its programs. The tests install it beside today's
dependencies. Once a version is released, its commit becomes the one to keep.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

KEPT = ("nsml", "nodeagent", "controlplane", "cli", "pyproject.toml")
TARGET = Path(__file__).parent.parent / "tests" / "upgrade" / "previous.tar.xz"


def main() -> None:
    """Write the archive."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tools.keep_version COMMIT")
    whole = subprocess.run(
        ["git", "archive", "--format=tar", sys.argv[1], *KEPT], check=True, capture_output=True
    ).stdout
    kept = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(whole)) as source,
        tarfile.open(fileobj=kept, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        for member in source:
            if member.isfile() and not member.name.endswith((".pyi", ".md")):
                target.addfile(member, source.extractfile(member))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(lzma.compress(kept.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
