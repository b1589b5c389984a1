"""Writes the file in each archive that it is given to stdout, each with a line that says what follows.

A program of the sandbox (standard library only): an archive has what an image's maker chose. `file`, the
content and a NUL byte, which no such file has; `none` and a NUL byte for what is no regular file.
"""

from __future__ import annotations

import sys
import tarfile


def unpacked(path: str) -> bytes | None:
    """The content of the first entry of the archive; None: it is no regular file, or no archive."""
    try:
        with tarfile.open(path) as archive:
            entry = archive.next()
            file = archive.extractfile(entry) if entry is not None and entry.isreg() else None
            content = None if file is None else file.read()
    except (tarfile.TarError, ValueError, EOFError):
        return None
    return None if content is None or b"\0" in content else content


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        found = unpacked(argument)
        sys.stdout.buffer.write(b"none\n\0" if found is None else b"file\n" + found + b"\0")
