"""A real platform, as `nsml up` starts it: with etcd where it is installed, else embedded."""

from collections.abc import Iterator

import pytest

from tests.support.in_process import Platform


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=2) as running:
        yield running
