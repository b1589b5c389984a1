"""Prints the first file of each given archive to stdout, after a line with its kind.

Runs in the sandbox (standard library only), since an image's maker chose the contents. Per archive: `file`,
the content and a NUL byte, which no such file has; `none` and a NUL byte if it is no regular file.
"""

from __future__ import annotations

import sys
import tarfile


def unpacked(path: str) -> bytes | None:
    """The archive's first file; None: no archive, no regular file, or one with NUL bytes."""
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
