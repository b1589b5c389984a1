"""The program that chaos submits: it reports, prints, saves, and keeps a ledger of all of that.

The ledger is outside of the platform: what the kernel has when a call has returned is the truth that
the platform's word is held against. One file a process; a line is NANOSECONDS WORD REST by the
monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEDGERS: Final = "CHAOS_LEDGERS"
"""Variable of a session: the folder of the ledgers."""

CODE: Final = '''\
"""Reports, prints and saves; writes down what it did. STEPS < 0: until it is stopped."""
import os, sys, time
import nsml

steps, pause, code, every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
name = "%s.%d" % (os.environ["NSML_REPLICA"], os.getpid())
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
ledger = os.open(os.path.join(os.environ["CHAOS_LEDGERS"], name), flags, 0o666)

def note(*words):
    os.write(ledger, (" ".join(map(str, (time.monotonic_ns(), *words))) + "\\n").encode())

def write(path):
    with open(os.path.join(path, "weights"), "w") as file:
        file.write(str(step))

note("begin", os.environ.get("CUDA_VISIBLE_DEVICES") or "none")
step = 0
while step != steps:
    nsml.report(step=step, loss=step)
    note("report", step)
    os.write(1, b"line %d %s\\n" % (step, b"x" * (step % 50)))
    note("print", step)
    if every and step % every == every - 1:
        nsml.save(step, save_fn=write)
        note("save", step)
    step += 1
    time.sleep(pause)
note("end", code)
sys.exit(code)
'''


def read_ledgers(folder: Path) -> Iterator[dict[str, Any]]:
    """One record for each process that began: what it was, held and did."""
    for path in sorted(folder.iterdir()):
        session, attempt, rank, pid = path.name.rsplit(".", 3)
        record: dict[str, Any] = {
            "session": session,
            "attempt": int(attempt),
            "rank": int(rank),
            "pid": int(pid),
            "devices": [],
            "end": None,
        }
        done: dict[str, list[int]] = {"report": [], "print": [], "save": []}
        for line in path.read_text(encoding="utf-8").splitlines():
            at, word, rest = line.split(" ", 2)
            record.setdefault("from", int(at))
            record["to"] = int(at)
            if word == "begin":
                record["devices"] = [] if rest == "none" else rest.split(",")
            elif word == "end":
                record["end"] = int(rest)
            else:
                done[word].append(int(rest))
        if "from" in record:
            yield record | {
                "reported": done["report"],
                "printed": done["print"],
                "saved": done["save"],
            }
