"""Reads a large manifest, as a process of its own: `python -m controlplane.content.manifest_reader ROOT FILE [--sizes]`.

The encoding comes by standard input, in any pieces. The digests that it lists, its pages among them, go to the open file of
number FILE as `members.py` has them; a line of facts, and one of the sizes of files, go to standard output. Whatever is sent, its memory
is bounded: it must not stop all other calls of the control plane, nor leave a gigabyte behind there.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import IO, TYPE_CHECKING, Final

from controlplane.content.members import Collected
from nsml.content.errors import ContentError, ManifestRefused
from nsml.content.pages import Naming
from nsml.content.stored_manifest import check_stream

if TYPE_CHECKING:
    from nsml.content.chunks import Readable

MEMORY_BYTES: Final = 1 << 30
"""Address space: an encoding of any size takes some 60 MB of it, and as much the sizes of the most files that are asked for."""
MOST_SIZES_BYTES: Final = 16 << 20
"""Paths and sizes of a manifest whose sizes are asked for: of a few media, or 100,000 files."""
_SIZE_BYTES: Final = 64
REFUSED_CODE: Final = 3

_NICE: Final = 10


def read(encoding: Readable, root: str, members: IO[bytes], *, is_with_sizes: bool) -> list[str]:
    """What goes to standard output. Raises ContentError for what is no encoding that `root` names."""
    naming, sizes, held = Naming(encoding), dict[str, int](), 0

    def found(path: str, size: int) -> None:
        nonlocal held
        if is_with_sizes:
            held += _SIZE_BYTES + len(path)
            if held > MOST_SIZES_BYTES:
                raise ManifestRefused(f"over {len(sizes)} files, which are too many of this kind")
            sizes[path] = size

    with Collected() as collected:
        extent = check_stream(naming.read, collected.add, found=found)
        if not naming.is_named(root):
            raise ManifestRefused(f"its pages are not what {root[:16]} names")
        named = naming.root()
        for page in named.pages if named.digest == root else ():
            collected.add(page.digest, page.size)
        different = collected.write(members)
    facts = {"size": extent.size, "files": extent.files, "different": different}
    return [json.dumps(facts), json.dumps(sizes)]


def main() -> None:
    """Read what the arguments say."""
    root, descriptor = sys.argv[1], int(sys.argv[2])
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the control plane
    encoding = os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    with os.fdopen(descriptor, "wb", closefd=False) as members:
        try:
            lines = read(encoding, root, members, is_with_sizes="--sizes" in sys.argv)
        except ContentError as error:
            sys.stdout.buffer.write(str(error).encode("utf-8", "replace"))
            sys.stdout.flush()
            sys.exit(REFUSED_CODE)
    sys.stdout.write("\n".join(lines))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
