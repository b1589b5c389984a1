"""The wall clocks of a tormented platform's programs, each set for itself while the program runs.

The machine's own clock is everybody's. A library that a program preloads adds to what it reads of it as many nanoseconds as
a file of eight bytes says; its monotonic clock, and the times of files, stay the machine's.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.processes import NotDone

VARIABLE: Final = "WALL_CLOCK"
_NUMBER: Final = struct.Struct("=q")


@dataclass
class Clocks:
    """The clocks of parts, by name. A set clock stays set when its part is started again.

    Attributes:
        library: what parts preload; None: no clock can be set.
        folder: for a file for each part.
        ahead_s: how far each is ahead of the machine's; with those that are wrong when their parts start first.
    """

    library: Path | None = None
    folder: Path = Path()
    ahead_s: dict[str, float] = field(default_factory=dict)

    def environment(self, part: str) -> dict[str, str]:
        """Return the variables of a program whose clock can be set; none if it cannot."""
        if self.library is None:
            return {}
        file = self._file(part)
        file.write_bytes(_NUMBER.pack(0))
        self.set(part, self.ahead_s.setdefault(part, 0.0))
        return {"LD_PRELOAD": str(self.library), VARIABLE: str(file)}

    def set(self, part: str, ahead_s: float) -> None:
        """Set the clock of a part to so many seconds ahead of the machine's; negative: behind.

        Raises:
            NotDone: this part's clock cannot be set.
        """
        if part not in self.ahead_s:
            raise NotDone(f"the clock of {part} cannot be set")
        file = os.open(self._file(part), os.O_WRONLY)
        try:
            os.pwrite(file, _NUMBER.pack(round(ahead_s * 1e9)), 0)
        finally:
            os.close(file)
        self.ahead_s[part] = ahead_s

    def _file(self, part: str) -> Path:
        return self.folder / f"{part}.clock"
