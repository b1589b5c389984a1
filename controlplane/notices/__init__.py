"""Users' webhooks, and the notices that wait for them."""
