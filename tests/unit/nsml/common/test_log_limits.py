from __future__ import annotations

import structlog

from nsml.common.log_limits import LINES_A_MINUTE, MOST_CHARS, LogLimits


def test_one_event_fills_no_log_and_takes_no_room_from_others() -> None:
    now = 0.0
    written: list[dict[str, object]] = []

    def keep(_: object, __: str, line: dict[str, object]) -> str:
        written.append(dict(line))
        return ""

    logger = structlog.wrap_logger(
        structlog.ReturnLogger(), processors=[LogLimits(lambda: now), keep]
    )
    for _ in range(10_000):
        logger.info("record.unreadable", session="s1")
    assert len(written) == LINES_A_MINUTE
    logger.error("store.failed")
    assert written[-1] == {"event": "store.failed"}
    now = 61.0
    logger.info("record.unreadable", session="s1")
    assert written[-1]["dropped"] == 10_000 - LINES_A_MINUTE
    logger.info("record.unreadable", session="s1")
    assert "dropped" not in written[-1]


def test_long_values_are_shortened_and_say_so() -> None:
    line = LogLimits()(None, "info", {"event": "a", "name": "x" * 1_000_000, "count": 3})
    assert len(line["name"]) < MOST_CHARS + 40
    assert line["name"].endswith("... (1,000,000 characters)")
    assert line["count"] == 3
