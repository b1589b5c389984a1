"""Programs that generate and check files of this repository."""
