"""Explains why a program could not be started: the system also reports "No such file or directory" for a missing interpreter."""

import errno
import os
import stat

_FIRST_BYTES = 256
"""The part of the first line that the kernel reads."""
_NOT_SEEN = " (isolated sessions see the node's system, their code and datasets, but no other folders of the node)"
_MARK = b"\xef\xbb\xbf"


def why_not_started(program: str, path: str, number: int) -> str:
    """Return the reason for the error `number` of starting `program`, searched in `path`."""
    reason, first = os.strerror(number), _first_bytes(program, path)
    if first is None:
        is_elsewhere = number == errno.ENOENT and program.startswith("/")
        return f"{reason}{_NOT_SEEN}" if is_elsewhere else reason
    if number == errno.ENOENT:
        return _why_not_there(first)
    if number == errno.EACCES:
        reason += f": the file is not executable (chmod +x, or -- sh {program})"
    elif number == errno.ENOEXEC and first.startswith(_MARK + b"#!"):
        reason += ": it begins with a byte order mark, which hides its first line #!"
    elif number == errno.ENOEXEC:
        reason += ": a script needs a first line such as #!/bin/sh"
    return reason


def _why_not_there(first: bytes) -> str:
    """Name the missing interpreter or loader of an existing file."""
    if not first.startswith(b"#!"):
        return "the file exists, but its loader does not"
    words = first[2:].partition(b"\n")[0].strip(b" \t").split(b" ")
    said = f"its first line names the interpreter {os.fsdecode(words[0])!a}"
    if words[0].endswith(b"\r"):
        return f"{said}: it ends in CR LF, as on Windows (dos2unix)"
    return f"{said}, which does not exist"


def _first_bytes(program: str, path: str) -> "bytes | None":
    """Return the beginning of the file that would be started; None if missing or unreadable."""
    folders = [""] if "/" in program else path.split(os.pathsep)
    for folder in folders:
        try:
            # A pipe in its place must not block us.
            descriptor = os.open(os.path.join(folder, program), os.O_RDONLY | os.O_NONBLOCK)
        except (OSError, ValueError):
            continue
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.read(descriptor, _FIRST_BYTES)
        finally:
            os.close(descriptor)
    return None
