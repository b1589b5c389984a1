"""Reads a large manifest, as a process of its own: `python -m controlplane.content.manifest_reader ROOT FILE [--sizes]`.

Reads the encoding from stdin, in any pieces. Writes its digests, its pages among them, to the file descriptor FILE in
the format of `members.py`; prints a line of totals, and one of the sizes of files, to stdout.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import IO, TYPE_CHECKING, Final

from controlplane.content.limited_process import work_limited
from controlplane.content.members import MembersBuilder
from nsml.content.errors import ManifestRefused
from nsml.content.pages import Naming
from nsml.content.stored_manifest import check_stream

if TYPE_CHECKING:
    from nsml.content.chunks import Readable

MOST_SIZES_BYTES: Final = 16 << 20
"""Max bytes of paths and sizes with `--sizes`: enough for a few media, or 100,000 files."""
_SIZE_BYTES: Final = 64


def read(encoding: Readable, root: str, members: IO[bytes], *, is_with_sizes: bool) -> str:
    """Return the output for stdout. Raises ContentError unless it is an encoding named by `root`."""
    naming, sizes, held = Naming(encoding), dict[str, int](), 0

    def found(path: str, size: int) -> None:
        nonlocal held
        if is_with_sizes:
            held += _SIZE_BYTES + len(path)
            if held > MOST_SIZES_BYTES:
                raise ManifestRefused(f"over {len(sizes)} files, which are too many of this kind")
            sizes[path] = size

    with MembersBuilder() as collected:
        extent = check_stream(naming.read, collected.add, found=found)
        if not naming.is_named(root):
            raise ManifestRefused(f"its pages are not what {root[:16]} names")
        named = naming.root()
        for page in named.pages if named.digest == root else ():
            collected.add(page.digest, page.size)
        different = collected.write(members)
    facts = {"size": extent.size, "files": extent.files, "different": different}
    return f"{json.dumps(facts)}\n{json.dumps(sizes)}"


def main() -> None:
    """Read the manifest named by the arguments."""
    root, descriptor = sys.argv[1], int(sys.argv[2])
    encoding = os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    with os.fdopen(descriptor, "wb", closefd=False) as members:
        work_limited(partial(read, encoding, root, members, is_with_sizes="--sizes" in sys.argv))


if __name__ == "__main__":
    main()
