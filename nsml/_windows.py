"""`nsml.Visdom` in a session: windows go to a server of the program's own, or to a file that becomes an artifact."""

from __future__ import annotations

import atexit
import os
import tempfile

from nsml._notice import notice
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Set

_ARTIFACT = "visdom"
_NOBODY = ("", "localhost", "127.0.0.1", "http://localhost", "http://127.0.0.1")
_told: Set[str] = set()
_files: Dict[int, str] = {}
"""Where the windows of each process are."""


def session_visdom(base: Any, options: Dict[str, Any], artifact: Callable[[str, str], None]) -> Any:
    """Return an object of a subclass of `visdom.Visdom`; `artifact` saves its windows."""
    kind = _subclass(base)
    if str(options.get("server", "")).rstrip("/") not in _NOBODY:
        try:
            return kind(**options)
        except OSError as error:
            if comes_from_signal(error):
                raise
            _tell(f"nsml.Visdom: {reason(error)}")
    return kind(**{**options, **_to_a_file(artifact), "use_incoming_socket": False})


def _subclass(base: Any) -> Any:
    class Visdom(base):  # type: ignore[misc] # whatever version the program has
        """Windows that cannot be sent are named in the log once."""

        def _send(self, *arguments: Any, **named: Any) -> Any:
            try:
                return super()._send(*arguments, **named)
            except Exception as error:
                if comes_from_signal(error):
                    raise
                _tell(f"a window of nsml.Visdom is lost, training goes on: {reason(error)}")
                return False

    return Visdom


def _to_a_file(artifact: Callable[[str, str], None]) -> Dict[str, Any]:
    pid = os.getpid()
    if pid not in _files:  # else of the parent's
        file = _files[pid] = os.path.join(tempfile.mkdtemp(prefix="nsml-"), "visdom.log")

        def save() -> None:
            if os.getpid() == pid and os.path.exists(file):
                artifact(_ARTIFACT, file)

        atexit.register(save)
        _tell(
            "sessions have no Visdom server: at its end the session has the windows as the artifact visdom, which"
            " visdom.Visdom().replay_log(FILE) shows"
        )
    return {"log_to_filename": _files[pid], "offline": True}


def _tell(text: str) -> None:
    if text not in _told:
        _told.add(text)
        notice(text)
