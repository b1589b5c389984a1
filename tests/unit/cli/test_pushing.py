"""What a push reads again, and what it does without its cache."""

from __future__ import annotations

import pytest

from nsml.content.safe_paths import ByDescriptor
from nsml.content.stat_cache import FILE_NAME


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The files that are opened, all of which count as written long ago."""
    monkeypatch.setattr("nsml.content.stat_cache.RACY_NS", -(10**18))
    found: list[str] = []
    real = ByDescriptor.open_file

    def open_file(self: ByDescriptor, parts: tuple[str, ...]) -> int:
        found.append("/".join(parts))
        return real(self, parts)

    monkeypatch.setattr(ByDescriptor, "open_file", open_file)
    return found


@pytest.mark.parametrize("command", [["dataset", "push", "digits", "."], ["run"]])
def test_an_unchanged_folder_is_not_read_again(nsml, state, project, opened, command) -> None:
    (project / "labels.csv").write_text("1,2")
    first = nsml(*command, "-j").stdout
    assert sorted(opened) == ["labels.csv", "main.py"]
    opened.clear()
    blobs = dict(state.blobs)
    nsml(*command)
    assert (opened, state.blobs) == ([], blobs)
    nsml(*command, "--rehash")
    assert sorted(opened) == ["labels.csv", "main.py"]
    opened.clear()
    (project / "labels.csv").write_text("2,1")
    assert nsml(*command, "-j").stdout != first
    assert opened == ["labels.csv"]
    assert len(state.blobs) == len(blobs) + 2


def test_nothing_is_said_to_be_sent_of_what_is_there_already(nsml, project) -> None:
    words = ["dataset", "push", "digits", "."]
    assert "sending" in nsml(*words, terminal=True).stderr
    again = nsml(*words, terminal=True).stderr
    assert ("sending" in again, "comparing" in again, "sent 0 files" in again) == (
        False,
        True,
        True,
    )


def test_a_broken_cache_changes_nothing(nsml, state, home, project, opened) -> None:
    place = home / "cache" / "nsml" / FILE_NAME
    place.parent.mkdir(parents=True)
    place.mkdir()
    told = nsml("dataset", "push", "digits", ".")
    assert "version 1" in told.stdout
    assert nsml("dataset", "push", "digits", ".").stdout.replace("already ", "") == told.stdout
    assert opened == ["main.py"] * 2


def test_a_dry_run_reads_no_file_to_send_it(nsml, project, opened) -> None:
    nsml("run", "--dry-run")
    assert opened == []
