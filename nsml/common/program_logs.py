"""The log of a server program: one JSON object per line on standard error, also for libraries' records."""

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
"""Set before gRPC is imported: else its C core writes its own lines to standard error."""


def quiet_grpc() -> None:
    """Keep the C core's own lines out of the log; call before gRPC is imported. Its failures are also raised."""
    os.environ.setdefault(*QUIET_GRPC)


def write_json_lines(
    level: str = "info", *, file: Path | None = None, most_bytes: int = LONGEST_LOG_BYTES
) -> None:
    """Write this program's log, and records of libraries from `warning` on.

    `file`: the file behind standard error, if it is to be rotated at `most_bytes`.
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
    """Forwards records of the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        log = structlog.get_logger(record.name)
        facts: MutableMapping[str, Any] = {"logger": record.name, "text": record.getMessage()}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        log.log(record.levelno, "library.said", **facts)
