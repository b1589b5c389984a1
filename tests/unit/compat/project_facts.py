"""Facts of projects and datasets made for NSML: a function a row of `nsml.spec.nsml_compat`."""

from __future__ import annotations

from controlplane.domain.boards.values import BoardSettings
from controlplane.domain.values import InitialCheckpoint, SessionSpec
from controlplane.submissions.steps import PAUSE_WITHIN_S, StepLimits, predict_spec
from nodeagent.replica.preparation_steps import argv_of
from nodeagent.runtimes.launch import APP, DATA
from nsml.content.ignore import rules_for
from nsml.content.listing import CODE_LIMIT_BYTES, list_folder
from nsml.evaluation import Evaluation
from nsml.packages.requirements import read_requirements
from nsml.packages.setup_reader import install_requires
from nsml.spec.images import asked_image
from nsml.spec.nsml_arguments import takes_fork_arguments, with_fork_arguments
from nsml.v1 import datasets_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.compat.place import Place

ENTRY = """
import argparse, nsml
parser = argparse.ArgumentParser()
parser.add_argument("--pause", type=int, default=0)
parser.add_argument("--iteration", type=str, default="0")
config = parser.parse_args()
if config.pause:
    nsml.paused(scope=locals())
"""


def words_of_the_program(_: Place) -> None:
    spec = pb.SessionSpec(entry="train.py", args=["--lr", "0.1"])
    assert argv_of(spec) == ["python", "-u", "train.py", "--lr", "0.1"]
    assert APP == "/app"


def place_of_datasets(place: Place) -> None:
    assert place.session
    spec = place.run("-d", "mnist")
    assert [one.name for one in spec.datasets] == ["mnist"]
    assert DATA == "/data/"


def arguments_of_a_fork(_: Place) -> None:
    assert takes_fork_arguments([ENTRY], "best")
    assert not takes_fork_arguments(["print('no flags')"], "best")
    words = with_fork_arguments(["--lr", "0.1"], "best")
    assert words == ["--lr", "0.1", "--pause", "1", "--iteration", "best"]


def fire_entries(_: Place) -> None:
    entry = "from fire import Fire\ndef train(mode='train', pause=0, iteration='0'):\n    "
    assert takes_fork_arguments([entry + "nsml.paused()\nFire(train)\n"], "best")


def default_image(_: Place) -> None:
    setup = "from distutils.core import setup\nsetup(name='x')\n"
    assert asked_image([("setup.py", setup), ("requirements.txt", "tqdm\n")]) is None


def packages_of_both(_: Place) -> None:
    texts = {
        "setup.py": "from distutils.core import setup\nsetup(install_requires=['tqdm'])\n",
        "requirements.txt": "numpy==2.1.0\n",
    }
    assert set(read_requirements(texts.get).lines) == {"tqdm", "numpy==2.1.0"}


def image_lines(_: Place) -> None:
    for line in ("#nsml: lab/torch:2", "# nsml:lab/torch:2", "#nsml:lab/torch:2"):
        assert asked_image([("setup.py", line), ("requirements.txt", "")]) == "lab/torch:2"
        assert asked_image([("setup.py", ""), ("requirements.txt", line)]) == "lab/torch:2"


def packages_of_setup(_: Place) -> None:
    text = "#nsml: a\nfrom distutils.core import setup\nsetup(name='x', install_requires=['tqdm'])"
    assert install_requires(text) == (["tqdm"], [])


def own_sdk(_: Place) -> None:
    listed = "tqdm\nnsml @ git+https://github.com/n-CLAIR/nsml-local@8927e5c\n"
    read = read_requirements({"requirements.txt": listed}.get)
    assert read.lines == ("tqdm",)
    assert read.notes == ("nsml is left out: a session has that of its node",)


def debian_packages(place: Place) -> None:
    (place.folder / "nsml_package.txt").write_text("libgl1\nffmpeg\n")
    assert list(read_requirements({"nsml_package.txt": "libgl1\nffmpeg\n"}.get).packages) == [
        "libgl1",
        "ffmpeg",
    ]


def ignored_files(place: Place) -> None:
    (place.folder / ".nsmlignore").write_text("*.csv\n/out/\n!keep.csv\n")
    (place.folder / "out").mkdir()
    for name in ("a.csv", "keep.csv", "out/x.txt"):
        (place.folder / name).write_text("1")
    listed = list_folder(place.folder, ignore=rules_for(place.folder), max_bytes=CODE_LIMIT_BYTES)
    sent = {one.path for one in listed.files}
    assert {"main.py", "keep.csv"} <= sent
    assert not sent & {"a.csv", "out/x.txt"}


def warning_of_size(place: Place) -> None:
    with (place.folder / "big").open("wb") as file:
        file.truncate(11_000_000)
    said = place.nsml("run").stderr
    assert "Warning: Your session has a total size of over  10 MB" in said


def _pushed(place: Place, *words: str) -> list[str]:
    """The paths of the dataset that a push of the folder ./mnist makes."""
    plain = place.folder / "mnist"
    plain.mkdir()
    (plain / "a.png").write_text("1")
    place.nsml("dataset", "push", *words, "mnist", "./mnist")
    (made,) = place.state.datasets
    assert isinstance(made, datasets_pb2.Dataset)
    place.nsml("dataset", "pull", "mnist", "fetched")
    fetched = place.folder / "fetched"
    return sorted(str(one.relative_to(fetched)) for one in fetched.rglob("*.png"))


def plain_folders(place: Place) -> None:
    (path,) = _pushed(place, "-f")
    assert path.endswith("train/mnist/a.png")


def test_is_hidden(place: Place) -> None:
    folder = place.folder / "mnist"
    for name in ("train/train_data", "test/test_data", "test/test_label", "test_submit/test_data"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    (folder / "evaluation.py").write_text("print(0)\n")
    place.nsml("dataset", "push", "-l", "mnist", str(folder))
    (made,) = place.state.datasets
    hidden = {one.path for one in made.parts if one.access == datasets_pb2.PART_ACCESS_HIDDEN}
    assert hidden >= {"test", "test/test_label"}


def arguments_of_a_submission(_: Place) -> None:
    forked = ("--lr", "0.1", "--pause", "1", "--iteration", "best")
    made = predict_spec(
        SessionSpec(entry="main.py", args=forked),
        submission_id="u1",
        datasets=(),
        initial=InitialCheckpoint(session_id="s1", name="best"),
        environment_lock="",
        limits=StepLimits(predict_s=60.0, evaluate_s=60.0, prediction_bytes=1 << 20),
        folder="test",
        is_test=False,
    )
    assert made.args == ("--lr", "0.1", "--mode", "test", "--pause", "1")


def times_of_submissions(_: Place) -> None:
    assert PAUSE_WITHIN_S == 600.0
    assert BoardSettings().predict_s == 3600.0


_EVALUATION = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
{more}
config = parser.parse_args()
print("rows 3")
print(open(config.prediction).read().count("1") / 4)
"""
_KNOWN = 'parser.add_argument("--test_label_path", required=True)'


def _evaluated(place: Place, more: str) -> str:
    """The score of a prediction by an evaluation.py."""
    (place.folder / "test").mkdir()
    (place.folder / "test/test_label").write_text("1\n0\n1\n")
    (place.folder / "evaluation.py").write_text(_EVALUATION.format(more=more))
    (place.folder / "prediction").write_text("1\n1\n1\n")
    work = place.folder.parent / "work"
    work.mkdir()
    evaluation = Evaluation(str(place.folder), str(place.folder / "prediction"), str(work), 60.0)
    return str(evaluation.result(twice=False)["score"])


def last_line(place: Place) -> None:
    assert _evaluated(place, "") == "0.75"


def label_option(place: Place) -> None:
    assert _evaluated(place, _KNOWN) == "0.75"


def label_variable(place: Place) -> None:
    assert _evaluated(place, 'test_label_path = "/data/speech/test/test_label"') == "0.75"


def folder_of_the_code(place: Place) -> None:
    (place.folder / "a").mkdir()
    (place.folder / "a/train.py").write_text("print(1)\n")
    spec = place.run("-e", "a/train.py")
    assert spec.entry == "a/train.py"
