from __future__ import annotations

import pytest

from controlplane.domain.models import is_model

A100 = "NVIDIA A100-SXM4-80GB"
INSTANCE = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"


@pytest.mark.parametrize(
    "wanted", ["", "A100", "a100", "nvidia_a100", "A100-80GB", "80gb a100", A100, f" {A100} "]
)
def test_a_wish_means_a_model_that_has_all_of_its_words(wanted: str) -> None:
    assert is_model(A100, wanted)


@pytest.mark.parametrize("wanted", ["A10", "A1000", "H100", "A100-40GB", "A100 PCIE", "MIG", "*"])
def test_another_word_is_another_model(wanted: str) -> None:
    assert not is_model(A100, wanted)


def test_an_instance_is_meant_by_who_says_so() -> None:
    assert not is_model(INSTANCE, "A100")
    assert not is_model(INSTANCE, A100)
    assert is_model(INSTANCE, "a100 mig")
    assert is_model(INSTANCE, "MIG 1g.10gb")
    assert is_model(INSTANCE, "")


def test_a_device_without_a_model_is_none_that_anybody_asks_for() -> None:
    assert is_model("", "")
    assert not is_model("", "A100")


@pytest.mark.parametrize("wanted", ["A100|H100", "H100|a100-80gb", "H100 | A100"])
def test_of_several_models_any_is_meant(wanted: str) -> None:
    assert is_model(A100, wanted)
    assert is_model("NVIDIA H100", wanted)
    assert not is_model("NVIDIA A10", wanted)
    assert not is_model(INSTANCE, wanted)
