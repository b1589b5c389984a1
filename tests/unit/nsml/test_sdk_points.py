"""Safe points: what is asked there leaves nothing behind in the program, whatever comes up meanwhile."""

from __future__ import annotations

import sys

import pytest

from nsml._points import Points


class Page:
    """The page of orders of an agent that nobody answers for."""

    def __init__(self, folder):
        self._file = folder / "orders"
        self._number = 0
        self._file.write_bytes(bytes(64))
        self.points = Points(str(folder), lambda: None)

    def call(self):
        self._number += 1
        with self._file.open("r+b") as file:
            file.write(self._number.to_bytes(8, "big"))


@pytest.fixture
def page(tmp_path):
    return Page(tmp_path)


def raising_at(line):
    """A trace function: KeyboardInterrupt before this line of what is executed in nsml."""
    left = [line]

    def trace(frame, event, _):
        if "/nsml/_" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
        return trace

    return trace


def test_after_an_exception_at_any_moment_the_next_order_is_heard(page, capsys):
    interrupted = 0
    for line in range(1, 200):
        page.call()
        tracer = sys.gettrace()
        sys.settrace(raising_at(line))
        try:
            page.points.step()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(tracer)
        capsys.readouterr()
        page.call()
        page.points.step()
        assert "what was asked" in capsys.readouterr().err
    assert interrupted > 10


def test_an_order_makes_no_call_too_deep(page):
    def fits(rest):
        def go(depth):
            return page.points.step() if depth <= 0 else go(depth - 1)

        try:
            go(sys.getrecursionlimit() - rest)
        except RecursionError:
            return False
        return True

    rests = [rest for rest in range(1, 300) if fits(rest)]
    assert rests
    for rest in rests[:100]:
        page.call()
        assert fits(rest)
