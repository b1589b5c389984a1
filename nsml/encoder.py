"""Empty on purpose: existing code imports the name and uses nothing of it."""
