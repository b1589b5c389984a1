"""NSML_METRIC_API, as programs of 2022 report: HTTP on this process's loopback address, begun when it is first asked for.

`requests.post(os.environ["NSML_METRIC_API"], data=json.dumps({"@step": 3, "@epoch": 1, "loss": 0.5}))` reports.
`requests.delete` begins anew: it is an event of the session, and what was reported before stays.
"""

from __future__ import annotations

import hmac
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nsml._notice import notice
from nsml._report import Reporter
from nsml._spool import Spool
from nsml._strict import Strictness, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

_MOST_BYTES = 1 << 20
_SILENT_S = 10.0
_NAMES = {"@step": "step", "@epoch": "epoch"}
_LEFT_OUT = ("@time", "scope")
"""A record has its own time."""

_starts = threading.Lock()
_url = ""


def address(run_dir: str) -> str:
    """Return the URL of this process's server, which the first call starts. Raises OSError, RuntimeError."""
    global _url
    with _starts:
        if not _url:
            # A reporter of its own: what is asked of the program is none of this thread's.
            reporter = Reporter(Spool(os.path.join(run_dir, "spool")), Strictness(is_on=False))
            server = _Server(("127.0.0.1", 0), _Handler)
            server.reporter, server.secret = reporter, f"/{os.urandom(16).hex()}"
            serving = threading.Thread(target=server.serve_forever, daemon=True)
            serving.start()
            _url = f"http://127.0.0.1:{server.server_port}{server.secret}"
    return _url


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    reporter: Reporter
    secret: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENT_S

    def do_POST(self) -> None:
        """Report."""
        length = self.headers.get("Content-Length") or "0"
        size = int(length) if length.isdecimal() and len(length) < 20 else -1
        if not 0 <= size <= _MOST_BYTES:
            self._answer(413)
            return
        said = self.rfile.read(size)
        if not self._is_known():  # before a notice: strangers write nothing into the session's log
            return
        try:
            values = json.loads(said)
        except (ValueError, RecursionError) as error:
            notice(f"NSML_METRIC_API: the report is no JSON: {reason(error)}")
            self._answer(400)
            return
        if not isinstance(values, dict):
            notice("NSML_METRIC_API: the report is no object of values by name")
            self._answer(400)
            return
        self.server.reporter.report(_named(values), summary=True)
        self._answer(200)

    def do_DELETE(self) -> None:
        """Begin anew."""
        if self._is_known():
            if self.server.reporter.last():
                self.server.reporter.report(metrics="begun anew: DELETE of NSML_METRIC_API")
            self._answer(200)

    def do_GET(self) -> None:
        """Return the last report."""
        if self._is_known():
            self._answer(200, self.server.reporter.last())

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - named by http.server
        """Write nothing into the session's log."""

    def _is_known(self) -> bool:
        """Return whether the path is that of the variable: other users of the machine may reach the port."""
        if hmac.compare_digest(self.path.encode(), self.server.secret.encode()):
            return True
        self._answer(404)
        return False

    def _answer(self, code: int, content: Any = None) -> None:
        body = json.dumps(content or {}, default=str).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _named(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the values for `nsml.report`; without `@step` the epoch is the step."""
    named = {
        _NAMES.get(name, name): value for name, value in values.items() if name not in _LEFT_OUT
    }
    if "step" not in named and "epoch" in named:
        named["step"] = named["epoch"]
    return named
