"""doctor node: a real examination of this machine, by the agent's program."""

import json
import os

from cli.exits import ExitCode
from tests.unit.nsml.client.contract_server import EPOCH


def findings(result):
    return {(one["check"], one["grade"]): one for one in json.loads(result.stdout)["items"]}


def test_this_machine_is_examined_by_a_program_of_its_own(nsml, state, tmp_path):
    state.now = EPOCH + 86_400 - 3600
    result = nsml("doctor", "node", "--data", str(tmp_path), "-j", check=False)
    found = findings(result)
    assert {check for check, _ in found} >= {"python", "namespaces", "disk", "files", "shm"}
    assert "3600.0 s ahead of the control plane's" in found["clock", "bad"]["found"]
    assert result.code == ExitCode.FAILED
    if hasattr(os.path, "ALLOW_MISSING"):
        assert found["python", "ok"]["advice"] is None
    else:
        assert "CVE-2025-4517" in found["python", "warn"]["found"]


def test_no_platform_is_needed(nsml, tmp_path):
    result = nsml("doctor", "node", "--data", str(tmp_path), check=False, NSML_SERVER="127.0.0.1:1")
    assert "python" in result.stdout
    assert "the control plane's" not in result.stdout


def test_what_is_bad_comes_with_what_to_do(nsml, tmp_path):
    result = nsml("doctor", "node", "--data", "/proc/nowhere", check=False)
    assert result.code == ExitCode.FAILED
    assert "bad disk" in result.stderr
    assert "try: " in result.stderr


def test_settings_that_no_agent_starts_with_are_found(nsml, tmp_path):
    (tmp_path / "agent.site.toml").write_text("default_image = 3\n")
    result = nsml("doctor", "node", "--data", str(tmp_path), check=False)
    assert result.code == ExitCode.FAILED
    assert "bad settings: " in result.stderr
    assert "default_image" in result.stderr
