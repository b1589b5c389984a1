"""Code without one of its safeguards, for tests that show that other tests would notice."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


@dataclass(frozen=True)
class Mutant:
    """A module in which these words stand for others. They have to be within functions."""

    name: str
    module: ModuleType
    words: str
    instead: str


def install(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the module's functions do what the mutant's do. They and their classes stay the same objects."""
    source = inspect.getsource(mutant.module)
    assert source.count(mutant.words) == 1, (
        f"{mutant.name}: these words have changed; change the mutant"
    )
    changed = ModuleType(mutant.module.__name__)
    code = compile(source.replace(mutant.words, mutant.instead), mutant.name, "exec")
    exec(code, changed.__dict__)
    found = dict(_functions(changed, mutant.name))
    for name, function in _functions(mutant.module, mutant.module.__file__ or ""):
        monkeypatch.setattr(function, "__code__", found[name].__code__)


def _functions(module: ModuleType, file: str) -> Iterator[tuple[str, FunctionType]]:
    """Those that the source of a module defines, with their names."""
    for one in vars(module).values():
        inner = vars(one).values() if isinstance(one, type) else (one,)
        for each in inner:
            function: Any = getattr(each, "fget", None) or getattr(each, "__func__", each)
            function = inspect.unwrap(function) if callable(function) else function
            if isinstance(function, FunctionType) and function.__code__.co_filename == file:
                yield function.__qualname__, function


async def is_found(
    mutant: Mutant, tests: Callable[[], Iterator[Awaitable[object]]], *, within_s: float = 20.0
) -> bool:
    """Whether one of these fails, or waits for longer than that: a mutant may wait for ever."""
    for number, test in enumerate(tests()):
        try:
            async with asyncio.timeout(within_s):
                await test
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - however it shows
            print(f"{mutant.name}: number {number}: {error!r}")
            return True
    return False
