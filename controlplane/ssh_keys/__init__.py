"""Users' public keys: added, listed, removed."""
