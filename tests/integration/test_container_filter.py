"""What an engine's own seccomp profile, which containers keep, refuses of our list: SECURITY.md says what it does not."""

from __future__ import annotations

import json
import platform

from nodeagent.shim import seccomp
from tests.engines import required_engine, required_image

OLD_ENGINES = {"io_uring_enter", "io_uring_register", "io_uring_setup"}
"""Open before Docker 25."""
HARMLESS = {"modify_ldt", "clock_adjtime"}
"""Open in all: segments of a process of its own, and a clock that is read."""
REFUSALS = {"EPERM", "ENOSYS"}
ASKED = """\
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for name, number in json.loads(sys.argv[1]).items():
    ctypes.set_errno(0)
    libc.syscall(number, 0, 0, 0, 0, 0, 0)
    answers[name] = errno.errorcode.get(ctypes.get_errno(), "")
print(json.dumps(answers))
"""


def test_an_engines_profile_refuses_our_list_but_for_what_is_told() -> None:
    engine, _ = required_engine()
    image = required_image()
    which = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    calls = {**seccomp.REFUSED, **seccomp.MISSING}
    numbers = {name: pair[which] for name, pair in calls.items() if pair[which] is not None}
    said = engine.sdk.containers.run(
        image,
        ["python3", "-c", ASKED, json.dumps(numbers)],
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        user="1000:1000",
        remove=True,
    )
    answers = json.loads(said)
    assert answers.keys() == numbers.keys()
    assert {
        name for name, error in answers.items() if error not in REFUSALS
    } <= OLD_ENGINES | HARMLESS
