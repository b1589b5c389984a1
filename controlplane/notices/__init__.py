"""Users' webhooks, and their queued notices."""
