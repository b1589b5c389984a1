"""Thresholds for warnings about nodes: the same in every program."""

from __future__ import annotations

from typing import Final

CERTIFICATE_WARNING_S: Final = 14 * 86_400.0
"""A node's certificate is renewed 30 days before its end: with less than this left, renewals fail."""

WRONG_CLOCK_S: Final = 30.0
"""With a larger clock error, certificates, tokens and times of sessions are judged wrong."""
