"""Copies files out of and into a replica: run by a visitor for `nsml cp`, in place of a program.

It runs with the account of the replica, within its namespaces and its limits, without any right that its programs
lack: the kernel enforces their permissions. It uses its standard streams (`nsml.copying`).
"""

from __future__ import annotations

import errno
import os
import sys

from nodeagent.shim import namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import NoReturn

_STREAMS = 3
_READ_BYTES = 1 << 17


def prepare() -> None:
    """Import modules while they are visible: shims do not load them. Raises OSError."""
    import fcntl  # noqa: F401
    import gc

    try:
        import nsml.copying.receiver
        import nsml.copying.sender
        import nsml.copying.sync_receiver  # noqa: F401
    except ImportError as error:
        raise OSError(errno.ENOENT, f"its agent was replaced: {error}") from error
    gc.enable()


def serve(order: dict) -> NoReturn:  # type: ignore[type-arg]
    """Do one copy and exit. `order`: `path` is sent if `sends`; else received files are put there, perhaps as `name`.

    Or, if it `keeps_in_step`, work in the folder `path` until the client disconnects.
    """
    try:
        _copy(order)
    finally:
        os._exit(0)


def _copy(order: dict) -> None:  # type: ignore[type-arg]
    # load nothing that the session's user can write; nor can their processes inspect this one,
    # which executes nothing and so stays as the visitor made it
    sys.path.clear()
    sys.meta_path.clear()
    namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-cp")
    namespaces.close_range(_STREAMS, namespaces.LAST_DESCRIPTOR)
    from nsml.copying.messages import NotUnderstood, Refused, refused_message
    from nsml.copying.receiver import Receiver
    from nsml.copying.sender import Sender
    from nsml.copying.sync_receiver import SyncReceiver

    path = order["path"].encode("utf-8", "surrogateescape")
    try:
        if order.get("keeps_in_step"):
            _carry_out(SyncReceiver(path).steps())
        elif order["sends"]:
            _carry_out(Sender(path).steps())
        else:
            receiver = Receiver(
                path, order["name"].encode("utf-8", "surrogateescape"), keeps_inside=False
            )
            _carry_out(receiver.steps())
    except (NotUnderstood, Refused):
        pass
    except OSError as error:
        _write(refused_message(error))


def _carry_out(steps: Generator[bytes, bytes, None]) -> None:
    """Raises OSError, NotUnderstood, Refused."""
    said = next(steps)
    while True:
        try:
            if said:
                _write(said)
                said = next(steps)
            else:
                came = os.read(0, _READ_BYTES)
                if not came:
                    return  # its client has disconnected
                said = steps.send(came)
        except StopIteration:
            return


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]
