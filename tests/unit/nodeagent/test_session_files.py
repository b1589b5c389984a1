"""Files that sessions see in the place of the machine's: as those are now, and made anew only for a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.network import session_network
from nodeagent.network.session_network import machines_names

LONG_AGO = 1_000_000_000


class Etc:
    """A machine whose files changed last long ago."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resolv, self.hosts = folder / "resolv.conf", folder / "hosts"
        self.folder = folder / "network"
        self.resolv.write_text("nameserver 192.0.2.1\n")
        self.hosts.write_text("192.0.2.9 store\n")
        self.reads = 0
        self._now = LONG_AGO
        monkeypatch.setattr(session_network, "RESOLVED_BY", (self.resolv, folder / "none"))
        monkeypatch.setattr(session_network, "_HOSTS", self.hosts)
        monkeypatch.setattr(session_network.time, "time_ns", lambda: self._now)
        self.pass_time()
        self.files = session_network.WrittenFiles(self.folder, self._names)

    def _names(self) -> dict[str, str]:
        self.reads += 1
        return machines_names(())

    def pass_time(self) -> None:
        """As if whatever has happened so far was long ago."""
        stamps = [one.stat().st_ctime_ns for one in (self.resolv, self.hosts)]
        self._now = max(stamps) + 60_000_000_000

    def be_at(self, path: Path) -> None:
        """It has just changed."""
        self._now = path.stat().st_ctime_ns + 1

    def text(self, name: str) -> str:
        return self.files.places()[f"/etc/{name}"].read_text()


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Etc:
    return Etc(tmp_path, monkeypatch)


def test_they_are_made_once_while_nothing_changes(etc: Etc) -> None:
    assert etc.text("resolv.conf") == "nameserver 192.0.2.1\n"
    for _ in range(5):
        etc.files.places()
    assert etc.reads == 1


def test_a_change_of_the_machine_is_seen_by_the_next_session(etc: Etc) -> None:
    etc.files.places()
    etc.resolv.write_text("nameserver 192.0.2.2\n")
    assert etc.text("resolv.conf") == "nameserver 192.0.2.2\n"
    etc.hosts.write_text("192.0.2.8 store\n")
    assert "192.0.2.8 store" in etc.text("hosts")
    etc.resolv.unlink()
    etc.resolv.write_text("nameserver 192.0.2.3\n")
    assert etc.text("resolv.conf") == "nameserver 192.0.2.3\n"


def test_two_changes_within_a_tick_of_the_file_system_are_both_seen(
    etc: Etc, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = etc.resolv.stat()
    monkeypatch.setattr(
        session_network, "_stamps", lambda paths: [(stamp.st_ctime_ns, 0, 0, 0) for _ in paths]
    )
    etc.be_at(etc.resolv)
    etc.files.places()
    etc.resolv.write_text("nameserver 192.0.2.2\n")
    assert etc.text("resolv.conf") == "nameserver 192.0.2.2\n"


def test_a_file_that_somebody_removed_or_changed_is_made_anew(etc: Etc) -> None:
    place = etc.files.places()["/etc/hosts"]
    place.unlink()
    assert "192.0.2.9 store" in etc.text("hosts")
    place.write_text("192.0.2.66 store\n")
    assert "192.0.2.9 store" in etc.text("hosts")


def test_another_name_of_the_machine_is_seen(etc: Etc, monkeypatch: pytest.MonkeyPatch) -> None:
    etc.files.places()
    monkeypatch.setattr(session_network.socket, "gethostname", lambda: "renamed")
    assert "127.0.1.1 renamed" in etc.text("hosts")


def test_a_machine_whose_resolver_is_gone_says_so_until_there_is_one(etc: Etc) -> None:
    etc.files.places()
    etc.resolv.write_text("nameserver 127.0.0.1\n")
    etc.pass_time()
    for _ in range(2):
        with pytest.raises(OSError, match="sessions would reach no resolver"):
            etc.files.places()
    etc.resolv.write_text("nameserver 192.0.2.1\n")
    etc.pass_time()
    assert etc.text("resolv.conf") == "nameserver 192.0.2.1\n"
