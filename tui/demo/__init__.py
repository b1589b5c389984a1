"""A made-up cluster: `nsml-tui --demo`."""
