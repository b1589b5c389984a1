"""Locks of environments: what they may hold, and what is installed for one."""

from __future__ import annotations

import pytest

from nsml.packages.locks import LockedPackage, LockRefused, locked, read_lock
from nsml.packages.requirements import Requirements

HASH = f"--hash=sha256:{'a' * 64}"
WHEEL = "https://files.example/own-1.0-py3-none-any.whl"


def test_packages_have_a_version_or_a_wheel_and_hashes() -> None:
    found = read_lock(
        f"Nump_y[a,b]==2.1.0 ; os_name == 'posix' {HASH} {HASH}\nown @ {WHEEL} {HASH}\n"
    )
    assert found == (LockedPackage("nump-y", "2.1.0"), LockedPackage("own", url=WHEEL))


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", f"a==1 {HASH}", "a==1\n", f"a==1 {HASH} x\n", f"a>=1 {HASH}\n", f"a {HASH}\n"),
        *(f"-e a==1 {HASH}\n", f"--index-url https://x {HASH}\n", f"-r other.txt {HASH}\n"),
        *(f"a @ file:///x.whl {HASH}\n", f"a @ http://x/a.whl {HASH}\n", f"a @ git+https://x {HASH}\n"),
        *(f"a @ https://x/a.tar.gz {HASH}\n", f"a==1 {HASH}\r\n", f"a==1 {HASH}\nA==2 {HASH}\n"),
        *(f"a==1 {HASH[:-1]}\n", f"a==1 --hash=md5:{'a' * 32}\n", f"# a==1 {HASH}\n", f"a==1\0 {HASH}\n"),
        *(f"{'a' * 200}==1 {HASH}\n", "".join(f"p{n}==1 {HASH}\n" for n in range(10_001))),
        *(f"a==1 ; x{end}--index-url https://x {HASH}\n" for end in " \t\x0b\x1c\x85\u2028\r"),
        f"a==1 ; '${{SECRET}}' == '' {HASH}\n",
        *(f"a==1 ;{' ' * 2_000_000}\n", f"a==1 ; x\u2028--index-url https://x {HASH}\u2028\n"),
    ],
)  # fmt: skip
def test_everything_else_is_no_lock(text: str) -> None:
    with pytest.raises(LockRefused):
        read_lock(text)


def test_packages_come_from_where_code_and_site_say() -> None:
    asked = Requirements(lines=("--index-url https://index.example/simple", "a>=1"))
    site = ("--extra-index-url https://cpu.example/whl", f"own @ {WHEEL}", "b")
    lock = f"a==1 {HASH}\nb==2 {HASH}\nown @ {WHEEL} {HASH}\n"
    assert locked(asked, lock, site).lines == (
        *("--extra-index-url https://cpu.example/whl", "--index-url https://index.example/simple"),
        *lock.splitlines(),
    )
    with pytest.raises(LockRefused, match="does not name"):
        locked(asked, lock)
    own = Requirements(lines=(f"a==1 {HASH}",))
    assert locked(own, lock, site) == own
