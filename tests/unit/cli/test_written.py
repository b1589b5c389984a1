"""What nsml wrote into a folder is not sent with code unnoticed."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.test_media import show


def pasted(folder, stderr):
    """Run the command that was offered, in a shell."""
    (line,) = [one for one in stderr.splitlines() if one.startswith("  try: printf")]
    subprocess.run(["/bin/sh", "-c", line.removeprefix("  try: ")], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["model", "pull", "mnist/1", "best", "."], "kim_mnist_1/"),
        (["pull", "mnist/1"], "kim_mnist_1/"),
        (["export", "mnist/1", "-o", "my run.csv"], "my run.csv"),
        (["export", "mnist/1", "-o", "runs/"], "runs/kim_mnist_1.csv"),
        (["plot", "mnist/1", "--svg", "a.svg"], "a.svg"),
        (["plot", "mnist/1", "--tensorboard", "logs"], "logs/kim/mnist/1/"),
        (["media", "mnist/1", "--export", "shown"], "shown/pictures/"),
    ],
)
@pytest.mark.parametrize("ignored", [None, "unused", "unused\n"])
def test_it_is_named_with_the_line_that_leaves_it_out(
    nsml, state, everything, project, words, named, ignored
):
    show(state, everything, "pictures", "text", b"x", content_type="text/plain")
    if ignored is not None:
        (project / ".nsmlignore").write_text(ignored)
    assert "that nsml wrote" not in nsml("run", "--dry-run").stderr
    nsml(*words)
    told = nsml("run", "--dry-run").stderr
    assert f" that nsml wrote here are sent, too: {named}" in told.replace(" is sent", " are sent")
    pasted(project, told)
    assert (project / ".nsmlignore").read_text().startswith(ignored or "/")
    assert "that nsml wrote" not in nsml("run", "--dry-run").stderr


def test_a_dataset_in_the_folder_is_not_sent_with_the_code_unnoticed(nsml, everything, project):
    (project / "data").mkdir()
    (project / "data" / "a").write_text("a")
    nsml("dataset", "push", "d", "data")
    told = nsml("run", "--dry-run").stderr
    assert "note: 1 file (1 Byte) of a pushed dataset is sent, too: data/;" in told
    assert "of a pushed" not in nsml("dataset", "push", "all", ".").stderr, "that is meant"
    pasted(project, told)
    assert "of a pushed" not in nsml("run", "--dry-run").stderr


def test_also_in_a_dataset_and_below_another_folder(nsml, everything, project):
    (project / "data").mkdir()
    (project / "data" / "a").write_text("a")
    nsml("export", "mnist/1", "-o", "data/run.csv")
    assert (
        "that nsml wrote here is sent, too: run.csv;" in nsml("dataset", "push", "d", "data").stderr
    )
    (project / "data" / "run.csv").unlink()
    assert "that nsml wrote" not in nsml("dataset", "push", "d", "data").stderr


def test_what_is_elsewhere_or_gone_is_not_named_and_a_broken_note_is_no_error(
    nsml, environ, everything, project, tmp_path
):
    nsml("export", "mnist/1", "-o", str(tmp_path / "run.csv"))
    notes = Path(environ["XDG_CACHE_HOME"], "nsml", "written.jsonl")
    with notes.open("a", encoding="utf-8") as file:
        file.write('"half a li\n5\n')
    assert "that nsml wrote" not in nsml("run", "--dry-run").stderr
    notes.unlink()
    notes.mkdir()
    nsml("export", "mnist/1", "-o", "run.csv")
    assert "that nsml wrote" not in nsml("run", "--dry-run").stderr


def test_old_notes_are_forgotten(nsml, environ, everything, project):
    nsml("export", "mnist/1", "-o", "run.csv")
    notes = Path(environ["XDG_CACHE_HOME"], "nsml", "written.jsonl")
    with notes.open("a", encoding="utf-8") as file:
        file.writelines(f'"/nowhere/{number}"\n' for number in range(10_000))
    nsml("export", "mnist/1", "-o", "more.csv")
    assert notes.stat().st_size < 1000
    assert "too: more.csv, run.csv;" in nsml("run", "--dry-run").stderr
