"""Small programs that the end-to-end tests submit."""

import time
from pathlib import Path

WITNESS = '''\
"""Reports and prints, and writes down first-hand what it did, for the test to hold against."""
import os, sys, time
import nsml

count, pause = int(sys.argv[1]), float(sys.argv[2])
with open("/app/witness", "a", buffering=1) as witness:
    for step in range(count):
        nsml.report(step=step, loss=1.0 / (step + 1))
        witness.write(f"report {step}\\n")
        line = f"line {step} " + "x" * (step % 50)
        os.write(1, (line + "\\n").encode())
        witness.write(f"print {line}\\n")
        if step % 20 == 0:
            nsml.text("said", f"step {step}", step=step)
            witness.write(f"text {step}\\n")
        if step == count // 2:
            nsml.save(step, save_fn=lambda path: open(os.path.join(path, "model"), "w").write("weights"))
        time.sleep(pause)
    witness.write("done\\n")
while not os.path.exists("/app/finish"):
    time.sleep(0.02)
'''


def write_program(folder: Path, text: str, entry: str = "main.py") -> Path:
    """A project folder that holds one entry."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / entry).write_text(text)
    return folder


def wait_for(condition, *, timeout_s: float = 120.0, what: str = "condition"):
    """The first true value of `condition()`; an AssertionError that names it after `timeout_s`.

    Between looks the processor is left alone for three times as long as a look took.
    """
    deadline = time.monotonic() + timeout_s
    while (began := time.monotonic()) < deadline:
        if value := condition():
            return value
        time.sleep(min(max(3 * (time.monotonic() - began), 0.02), 0.5))
    raise AssertionError(f"not within {timeout_s:g} s: {what}")
