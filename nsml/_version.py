"""The version of everything here: the SDK, the programs, the command line."""

VERSION = "0.2.0"
