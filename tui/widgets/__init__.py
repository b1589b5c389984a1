"""Widgets of our own: each stands alone, knows nothing of the platform, and is drawn line by line."""
