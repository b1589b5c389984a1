"""The room that the store takes: its past is forgotten, and room made where it is full."""
