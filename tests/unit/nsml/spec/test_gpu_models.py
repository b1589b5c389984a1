import pytest

from controlplane.domain.models import is_model
from nsml.spec.gpu_models import is_meant, model_word


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla V100-SXM2-16GB", "Tesla-V100-SXM2-16GB"),
        ("NVIDIA GeForce RTX 3090", "GeForce-RTX-3090"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100-SXM4-80GB-MIG-1g.10gb"),
        ("Simulated GPU", "Simulated-GPU"),
        ("nvidia", "nvidia"),
        ("", ""),
    ],
)
def test_a_model_as_one_word(model, word):
    assert model_word(model) == word


@pytest.mark.parametrize(
    "model", ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", ""]
)
@pytest.mark.parametrize(
    "wanted",
    ["", "a100", "A100-80GB", "A10", "H100|A100_SXM4", "MIG", "a100 mig", "-", "|", "H100"],
)
def test_which_models_a_request_means_is_what_the_control_plane_decides(model, wanted):
    assert is_meant(model, wanted) is is_model(model, wanted)
