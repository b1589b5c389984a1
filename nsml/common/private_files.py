"""Files with secrets: tokens, keys, passwords. A file that others may read is refused, by clients and by servers.

Files are named by text here: a short command would spend a fourteenth of its time importing pathlib.
"""

from __future__ import annotations

import os
import stat


class Exposed(PermissionError):
    """Others may read the file, so its content is no longer secret.

    Attributes:
        content: the secret, so that it can be revoked.
    """

    def __init__(self, file: str, content: bytes) -> None:
        self.words = (
            f"{file} may be read by others on this machine: chmod 600 {file}, and renew the secret"
        )
        super().__init__(self.words)
        self.strerror = "others may read it; chmod 600, and renew the secret"
        self.content = content


def read_private(file: str, *, flags: int = 0) -> bytes:
    """Read a file with a secret.

    Args:
        file: its path.
        flags: further ones for opening it, such as O_NOFOLLOW.

    Raises:
        Exposed: others may read it.
        OSError: it cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | flags)
    with os.fdopen(descriptor, "rb") as opened:
        facts = os.fstat(opened.fileno())
        content = opened.read()
    if is_exposed(facts):
        raise Exposed(file, content)
    return content


def is_exposed(facts: os.stat_result) -> bool:
    """Return whether other accounts may read or change a file.

    A file owned by root may be readable by its group: services get their keys this way. Anything but a regular file, such as a
    shell's pipe, is trusted.
    """
    who_we_are = getattr(os, "geteuid", None)
    if who_we_are is None or not stat.S_ISREG(facts.st_mode):
        return False  # without such accounts a mode means nothing
    mode, me = stat.S_IMODE(facts.st_mode), who_we_are()
    if facts.st_uid not in {0, me} and me != 0:
        return True
    is_for_us = facts.st_uid == 0 != me and facts.st_gid in {*os.getgroups(), os.getegid()}
    return bool(mode & (0o037 if is_for_us else 0o077))
