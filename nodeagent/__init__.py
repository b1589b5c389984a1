"""The node agent: one per machine. Kept empty, because every replica's shim imports through it."""
