"""Our own widgets: each is independent, knows nothing of the platform, and is drawn line by line."""
