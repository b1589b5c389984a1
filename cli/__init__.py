"""The command line `nsml`: one file per group of commands, each imported when it is used."""
