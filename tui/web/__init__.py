"""The dashboard in a browser: its page, and a process of the program for each browser."""
