"""What holds for a control plane that is called over gRPC."""

import pytest

from controlplane.state import replica_reports


@pytest.fixture(autouse=True)
def _retries_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long they wait is tried where the clock is a test's own."""
    monkeypatch.setattr(replica_reports, "BACKOFF_S", 0.1)
