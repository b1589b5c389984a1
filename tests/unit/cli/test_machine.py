"""What up and join say of the node that they started."""

import pytest

from cli.local.common import node_lines, open_way
from cli.local.data_folder import Choices, DataFolder

CHOICES = Choices(node="gpu-7", admin="kim")


def test_a_node_is_one_line_and_its_reasons_stand_below():
    agent = {
        "devices": ["NVIDIA A100-SXM4-80GB"] * 8,
        "isolation": "namespace",
        "isolation_note": "no containers: " + "the engine does not answer; " * 8 + "end",
        "only_owner": "its agent has neither root nor a container engine",
        "device_note": "not shown where there are devices",
    }
    first, *below = node_lines(CHOICES, agent)
    assert first == "gpu-7, isolation namespace, 8 x NVIDIA A100-SXM4-80GB"

    assert " ".join(below) == (
        f"runs only sessions of kim: {agent['only_owner']} {agent['isolation_note']}"
    )


def test_a_node_with_nothing_to_explain_is_one_line():
    agent = {"devices": ["Simulated GPU"], "simulated": True, "isolation": "container"}
    assert node_lines(CHOICES, agent) == [
        "gpu-7, isolation container, 1 x Simulated GPU (simulated)"
    ]
    assert node_lines(CHOICES, {}) == ["none: this machine runs no sessions"]


def test_why_there_are_no_gpus_is_told():
    agent = {"devices": [], "isolation": "container", "device_note": "no NVIDIA driver"}
    assert node_lines(CHOICES, agent) == ["gpu-7, isolation container, no GPUs", "no NVIDIA driver"]


@pytest.mark.parametrize(
    ("isolation", "has_agent", "mode"),
    [("user", True, 0o711), ("user", False, 0o700), ("auto", True, 0o700)],
)
def test_others_pass_a_new_data_folder_only_where_their_sessions_must(
    tmp_path, isolation, has_agent, mode
):
    folder = DataFolder(tmp_path / "data")
    with folder.locked():
        open_way(folder, Choices(isolation=isolation, has_agent=has_agent))
    assert folder.path.stat().st_mode & 0o777 == mode
