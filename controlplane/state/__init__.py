"""The live state of the platform as cached here: fed by one watch, changed by one writer."""
