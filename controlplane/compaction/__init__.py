"""Space of the coordination store: compaction, and reclaiming it when full."""
