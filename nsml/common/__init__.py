"""What every program of the platform needs: clocks, tasks, settings, servers, logs, private files."""
