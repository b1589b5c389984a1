"""Commands of boards and submissions."""
