"""`nsml-tui`: what the platform does, live, in a terminal. See README.md in this folder."""
