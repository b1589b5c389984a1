"""What follows @ in the name of a dataset."""

import click
import pytest

from cli.arguments import split_dataset
from cli.exits import CommandError


def test_versions_are_numbers_that_the_platform_can_have() -> None:
    assert split_dataset("mnist") == ("mnist", 0, "")
    assert split_dataset("mnist@12") == ("mnist", 12, "")
    assert split_dataset(f"mnist@{2**31 - 1}") == ("mnist", 2**31 - 1, "")


def test_tags_begin_with_a_letter() -> None:
    assert split_dataset("kim/mnist@gold-v1.5_x") == ("kim/mnist", 0, "gold-v1.5_x")
    assert split_dataset("mnist@" + "a" * 64) == ("mnist", 0, "a" * 64)
    assert split_dataset("mnist@v1.0") == ("mnist", 0, "v1.0")


@pytest.mark.parametrize(
    ("reference", "meant"),
    [("mnist@v3", "mnist@3"), ("mnist@latest", "mnist"), ("mnist:2", "mnist@2"), ("a:latest", "a")],
)
def test_what_other_tools_write_is_told_in_our_words(reference: str, meant: str) -> None:
    with pytest.raises(CommandError) as refused:
        split_dataset(reference)
    assert refused.value.advice == meant


@pytest.mark.parametrize(
    "version",
    ["", "0", "-1", "²", "٣", "1.5", str(2**31), "9" * 5000, "a" * 65, "a@b", "a b", "ä", "a\n"],
)
def test_what_is_no_version_is_a_usage_error(version: str) -> None:
    with pytest.raises(click.UsageError, match="after @ comes a version"):
        split_dataset(f"mnist@{version}")
