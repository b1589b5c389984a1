"""The examples of NSML's eras run outside of a platform: they train, and their own predictions are scored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsml.packages.setup_reader import install_requires
from nsml.spec.images import asked_image
from nsml.spec.nsml_arguments import takes_fork_arguments
from tests.support import predict_locally
from tests.support.nsml_examples import ALL, Example
from tests.unit.nsml.test_sdk_install import find_interpreters, of_python

ROOT = Path(__file__).parents[3]
CASES = [
    pytest.param(example, python, id=f"{example.name}-{of_python(python)}")
    for example in ALL
    for python in {sys.executable: None, find_interpreters()[0]: None}
    if python == sys.executable or not example.needs_numpy
]
"""Each by this Python, and by the oldest one where that has what it needs."""


class Trained:
    """A folder in which an example was trained, on data of its own."""

    def __init__(self, example: Example, python: str, folder: Path) -> None:
        self.example, self.python, self.folder = example, python, folder
        self.dataset = example.make_dataset(folder / "data" / example.name, python)
        self.work = folder / "work"
        self.work.mkdir()
        self.output = self.run(str(example.folder / "main.py"))

    def run(self, program: str, *arguments: str) -> str:
        """Run a program beside its checkpoints; what it prints."""
        done = subprocess.run(
            [self.python, "-u", program, *arguments],
            cwd=self.work,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
                "NSML_DATASET_PATH": str(self.dataset),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def predict(self) -> Path:
        """Predict with its checkpoint, as a submission does."""
        made = self.folder / "prediction"
        program = str(self.example.folder / "main.py")
        self.run(predict_locally.__file__, program, self.example.checkpoint, str(made))
        return made

    def score(self, prediction: Path) -> float:
        """Score it by the owner's program; one of 2018 knows its labels' place, which is another here."""
        text = (self.dataset / "evaluation.py").read_text()
        own = self.folder / "evaluation.py"
        own.write_text(text.replace("/data/", f"{self.dataset.parent}/"))
        takes_labels = "--test_label_path" in text
        labels = ["--test_label_path", str(self.dataset / "test/test_label")]
        words = ["--prediction", str(prediction), *(labels if takes_labels else [])]
        return float(self.run(str(own), *words).splitlines()[-1])


@pytest.mark.parametrize(("example", "python"), CASES)
def test_it_trains_and_its_prediction_is_scored(
    example: Example, python: str, tmp_path: Path
) -> None:
    trained = Trained(example, python, tmp_path)
    score = trained.score(trained.predict())
    assert example.least <= score <= example.most
    is_higher_better = example.untrained < example.least
    assert is_higher_better == (score > example.untrained)


@pytest.mark.parametrize("example", ALL, ids=lambda one: one.name)
def test_it_is_a_project_of_nsml(example: Example) -> None:
    setup = (example.folder / "setup.py").read_text()
    assert asked_image([("setup.py", setup)])
    assert install_requires(setup) == (["numpy"] if example.needs_numpy else [], [])
    assert takes_fork_arguments([(example.folder / "main.py").read_text()], example.checkpoint)
    assert f"dataset push -l {example.name}" in (example.folder / "README.md").read_text()
