"""What the scheduler decides, and how fast: `python -m bench.scheduler`."""
