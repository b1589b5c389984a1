"""The zone of this process, for a while."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def zone(name: str) -> Iterator[None]:
    """Let the process, and what it starts, be in a zone of the IANA database."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()
