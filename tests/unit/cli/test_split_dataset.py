"""What follows @ in the name of a dataset."""

import click
import pytest

from cli.arguments import split_dataset


def test_versions_are_numbers_that_the_platform_can_have() -> None:
    assert split_dataset("mnist") == ("mnist", 0)
    assert split_dataset("mnist@12") == ("mnist", 12)
    assert split_dataset(f"mnist@{2**31 - 1}") == ("mnist", 2**31 - 1)


@pytest.mark.parametrize("version", ["", "0", "-1", "²", "٣", "1.5", str(2**31), "9" * 5000])
def test_what_is_no_version_is_a_usage_error(version: str) -> None:
    with pytest.raises(click.UsageError, match="after @ comes a version"):
        split_dataset(f"mnist@{version}")
