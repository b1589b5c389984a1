"""The log of a program that serves: one JSON object a line on standard error, whoever writes it."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from nsml.common.log_files import LONGEST_LOG_BYTES, RotatedOutput
from nsml.common.log_limits import LogLimits
from nsml.common.lossy_stream import LossyText
from nsml.common.without_rich import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

QUIET_GRPC: Final = ("GRPC_VERBOSITY", "NONE")
"""Set before gRPC is imported: its C core would write lines of its own to standard error."""


def quiet_grpc() -> None:
    """Keep the C core's own lines out of the log; only before gRPC is imported. What fails is raised, too."""
    os.environ.setdefault(*QUIET_GRPC)


def write_json_lines(
    level: str = "info", *, file: Path | None = None, most_bytes: int = LONGEST_LOG_BYTES
) -> None:
    """Write what this program logs, and what libraries log from `warning` on.

    `file`: what standard error is appended to, if it is one that is to be rotated at so many bytes.
    """
    error = sys.stderr if file is None else RotatedOutput(sys.stderr, file, most_bytes)
    stream = cast("TextIO", LossyText(cast("TextIO", error)))
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            LogLimits(),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Passed()], level=logging.WARNING)


class _Passed(logging.Handler):
    """Hands records of the standard library's logging over."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        log = structlog.get_logger(record.name)
        facts: MutableMapping[str, Any] = {"logger": record.name, "text": record.getMessage()}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        log.log(record.levelno, "library.said", **facts)
