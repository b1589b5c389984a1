"""Libraries that are not recorded: one line says so, in the process that begins a run, and only where it is true.

The libraries here have the names of the real ones: what begins a run in those was tried by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.echoes import Echoed, environment_of, run_echoed

LIBRARIES = {
    "trackio": "def init(project): return 'run'\n",
    "aim": "class Run:\n    def __init__(self, project=''): pass\n",
    "comet_ml": "class CometExperiment:\n    def __init__(self, project=''): pass\n",
    "neptune": "class Run:\n    def __init__(self, project=''): pass\n",
    "clearml": "class Task:\n    def __init__(self, project=''): pass\n",
}
BEGIN = {
    "trackio": "assert trackio.init('p') == 'run'",
    "aim": "aim.Run()",
    "comet_ml": "comet_ml.CometExperiment()",
    "neptune": "neptune.Run('p')",
    "clearml": "clearml.Task()",
}


def begun(folder: Path, name: str, program: str, **more: str) -> tuple[Echoed, list[str]]:
    """Run a program with that library; return nsml's lines about it, too."""
    environment_of(folder)
    (folder / f"{name}.py").write_text(LIBRARIES[name])
    done = run_echoed(folder, f"import {name}\n{program}\nprint('ended well')\n", **more)
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr
    return done, [line for line in done.stderr.splitlines() if line.startswith("nsml: ")]


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_a_line_says_what_to_do_once(tmp_path: Path, name: str) -> None:
    [line] = begun(tmp_path, name, f"{BEGIN[name]}\n{BEGIN[name]}")[1]
    assert "nsml does not record what is reported to it: " in line
    assert "nsml.report" in line
    assert ("import wandb" in line) == (name == "trackio")
    assert ("SummaryWriter" in line) == (name in ("clearml", "comet_ml"))


@pytest.mark.parametrize(
    ("program", "more"),
    [
        ("", {}),
        (BEGIN["aim"], {"NSML_ECHO": "none"}),
        (BEGIN["aim"], {"NSML_ECHO": "wandb,tensorboard"}),
        (BEGIN["aim"], {"RANK": "1"}),
        (f"import nsml\nnsml.report(step=1, loss=2)\n{BEGIN['aim']}", {}),
    ],
    ids=["imported alone", "off", "others", "second process", "reported"],
)
def test_there_is_no_line(tmp_path: Path, program: str, more: dict[str, str]) -> None:
    assert begun(tmp_path, "aim", program, **more)[1] == []


@pytest.mark.parametrize("reports", [True, False])
def test_with_a_library_that_is_recorded_it_comes_at_the_end_or_not(
    tmp_path: Path, reports: bool
) -> None:
    """Frameworks report to several libraries: it is known at the end whether that was recorded."""
    environment_of(tmp_path)
    (tmp_path / "tensorboardX.py").write_text("")
    program = f"import sys, tensorboardX\n{BEGIN['aim']}\nprint('begun', file=sys.stderr)\n"
    if reports:
        program += (
            "from nsml._echo._sink import sink\nsink().metrics('tensorboard', {'loss': 1.0}, 1)\n"
        )
    done, lines = begun(tmp_path, "aim", program)
    assert len(done.points()) == reports
    assert len(lines) == (not reports)
    assert done.stderr.startswith("begun")


def test_with_its_insides_changed_the_program_goes_on(tmp_path: Path) -> None:
    environment_of(tmp_path)
    (tmp_path / "aim.py").write_text("class Run: pass\n")
    done = run_echoed(tmp_path, "import aim\naim.Run()\nprint('ended well')\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended well\n", "")
