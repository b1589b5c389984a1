"""The program that chaos submits: it reports, prints, shows, saves, and keeps a ledger of all of that.

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

ERRORS: Final = "errors"
"""What programs say on standard error, beside their ledgers."""

DONE: Final = {"report": "reported", "print": "printed", "show": "shown", "save": "saved"}
"""Lists of what a program did in its record, by the word of its ledger."""

CODE: Final = '''\
"""Reports, prints, shows and saves; writes down what it did. STEPS < 0: until it is stopped."""
import os, sys, time
import nsml

steps, pause, code = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
every, shown = int(sys.argv[4]), int(sys.argv[5])
ledgers = os.environ["CHAOS_LEDGERS"]
name = "%s.%d" % (os.environ["NSML_REPLICA"], os.getpid())
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
ledger = os.open(os.path.join(ledgers, name), flags, 0o666)
# What nsml says of a full disk must not stand in the middle of a line.
sys.stderr = open(os.path.join(ledgers, "errors"), "a")
printed, line = 0, b""

def note(*words):
    os.write(ledger, (" ".join(map(str, (time.monotonic_ns(), *words))) + "\\n").encode())

def write(path):
    with open(os.path.join(path, "weights"), "w") as file:
        file.write(str(step))

def put():
    """Print a line, or the rest of one: a full disk takes none of it, or a part."""
    global printed, line
    line = line or b"line %d %s\\n" % (printed, b"x" * (printed % 50))
    try:
        line = line[os.write(1, line):]
    except OSError:
        return
    if not line:
        note("print", printed)
        printed += 1

note("begin", os.environ.get("CUDA_VISIBLE_DEVICES") or "none")
step = 0
while step != steps:
    nsml.report(step=step, loss=step)
    note("report", step)
    put()
    if shown and step % shown == shown - 1:
        nsml.text("sample", str(step), step)
        note("show", step)
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
        if path.name == ERRORS:
            continue
        session, attempt, rank, pid = path.name.rsplit(".", 3)
        record: dict[str, Any] = {
            "session": session,
            "attempt": int(attempt),
            "rank": int(rank),
            "pid": int(pid),
            "devices": [],
            "end": None,
        }
        done: dict[str, list[int]] = {what: [] for what in DONE.values()}
        done_at: dict[str, list[int]] = {what: [] for what in DONE.values()}
        for line in path.read_text(encoding="utf-8").splitlines():
            at, word, rest = line.split(" ", 2)
            record.setdefault("from", int(at))
            record["to"] = int(at)
            if word == "begin":
                record["devices"] = [] if rest == "none" else rest.split(",")
            elif word == "end":
                record["end"] = int(rest)
            else:
                done[DONE[word]].append(int(rest))
                done_at[DONE[word]].append(int(at))
        if "from" in record:
            yield record | done | {"at": done_at}
