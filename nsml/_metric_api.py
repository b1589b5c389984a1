"""NSML_METRIC_API, as programs of 2022 report: HTTP on this process's loopback address, begun when it is first asked for.

`requests.post(os.environ["NSML_METRIC_API"], data=json.dumps({"@step": 3, "@epoch": 1, "loss": 0.5}))` reports.
`requests.delete` begins anew: it is an event of the session, and what was reported before stays.
"""

from __future__ import annotations

import os
import threading

from nsml._echo._http import RequestError
from nsml._echo._receiver import receiver
from nsml._notice import notice
from nsml._report import Reporter
from nsml._spool import Spool
from nsml._strict import Strictness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from nsml._echo._http import Request

_PREFIX = "/report"
_MOST_BYTES = 1 << 20
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
            spool = Spool(os.path.join(run_dir, "spool"))
            one = receiver()
            one.add(_PREFIX, _Reports(Reporter(spool, Strictness(is_on=False))).answer)
            _url = one.url(_PREFIX)
    return _url


class _Reports:
    """Answers requests of programs."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def answer(self, request: Request) -> Any:
        """Report for POST, begin anew for DELETE, return the last report for GET."""
        if request.path:
            raise RequestError(404, "not found")
        if request.method == "POST":
            self._report(request)
        elif request.method == "DELETE":
            if self._reporter.last():
                self._reporter.report(metrics="begun anew: DELETE of NSML_METRIC_API")
        elif request.method == "GET":
            return self._reporter.last()
        else:
            raise RequestError(501, "unknown method")
        return {}

    def _report(self, request: Request) -> None:
        try:
            values = request.body.json(_MOST_BYTES)
        except RequestError as error:
            if error.status == 400:
                notice(f"NSML_METRIC_API: the report is {error}")
            raise
        if not isinstance(values, dict):
            notice("NSML_METRIC_API: the report is no object of values by name")
            raise RequestError(400, "no object of values by name")
        self._reporter.report(_named(values), summary=True)


def _named(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the values for `nsml.report`; without `@step` the epoch is the step."""
    named = {
        _NAMES.get(name, name): value for name, value in values.items() if name not in _LEFT_OUT
    }
    if "step" not in named and "epoch" in named:
        named["step"] = named["epoch"]
    return named
