"""Pages of the contract server: short, so that clients have to read several."""

from __future__ import annotations

LARGEST = 2


def page_of(every, request):
    """At most LARGEST of a list, however many are asked for, and the cursor of the next page."""
    start, size = int(request.cursor or 0), min(request.page_size or 100, LARGEST)
    more = start + size < len(every)
    return every[start : start + size], str(start + size) if more else ""
