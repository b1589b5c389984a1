"""A library that sets the wall clock of one process, for tests of clocks that are set."""
