"""Errors of the endpoint, in S3's terms."""

from __future__ import annotations


class S3Error(Exception):
    """An error response: HTTP status, S3's error code, and a message for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def denied(code: str, message: str) -> S3Error:
    """403."""
    return S3Error(403, code, message)


def invalid(message: str, code: str = "InvalidArgument") -> S3Error:
    """400."""
    return S3Error(400, code, message)
