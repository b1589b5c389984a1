import pytest

from nsml.spec.gpu_models import model_word


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
