"""How the figures of reports stand beside those of others."""

from __future__ import annotations

import subprocess
import sys

from bench import insight, insight_peers


def test_a_ratio_is_told_of_each_peer_that_ran() -> None:
    figures = {"report_calls_per_s": 100.0, "durable_points_per_s": 5.0}
    peers = {"aim.report_calls_per_s": 10.0, "aim.written_points_per_s": 1.0}
    assert insight.ratios(figures, peers) == {"calls_over_aim": 10.0}


def test_what_is_not_there_is_said_and_has_no_figures(tmp_path, capsys) -> None:
    (tmp_path / "aim").mkdir()
    assert insight_peers._run(sys.executable, "aim", tmp_path) == []
    assert "aim does not run: ModuleNotFoundError" in capsys.readouterr().err


def test_a_peer_that_is_not_known_is_refused_with_those_that_are() -> None:
    command = [sys.executable, "-m", "bench.insight", "--peers", "tensorboard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no tensorboard; there are tensorboardx, wandb" in done.stderr
