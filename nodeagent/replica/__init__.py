"""One replica on its node: its preparation, its program, what it may ask for, its end."""
