"""What a submission is refused for, and what is proposed instead."""

from __future__ import annotations

import pytest

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.values import SessionSpec
from controlplane.sessions.validation import check_dockerfile, check_grace


@pytest.mark.parametrize("other", [{"image": "a/b"}, {"environment_lock": "c" * 64}])
def test_a_dockerfile_alone_says_what_is_installed(other: dict[str, str]) -> None:
    check_dockerfile(SessionSpec(dockerfile="Dockerfile", bundle_digest="b" * 64))
    with pytest.raises(InvalidRequest, match="and a Dockerfile"):
        check_dockerfile(SessionSpec(dockerfile="Dockerfile", bundle_digest="b" * 64, **other))


@pytest.mark.parametrize("seconds", [3601.0, 86_400_000.0, -1.0])
def test_a_grace_that_cannot_be_is_refused_with_the_longest(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="a grace period of") as refused:
        check_grace(seconds)
    assert refused.value.why
    assert refused.value.attempt == "nsml run --grace 1h ..."
    with pytest.raises(InvalidRequest) as refused:
        check_grace(seconds, "nsml stop kim/None/1 --grace {}")
    assert refused.value.attempt == "nsml stop kim/None/1 --grace 1h"
    assert check_grace(3600.0) == 3600.0
