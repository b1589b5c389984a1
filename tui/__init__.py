"""`nsml-tui`: the platform, live, in a terminal. See README.md in this folder."""
