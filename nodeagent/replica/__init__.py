"""One replica on its node: its preparation, its program, its requests, its end."""
