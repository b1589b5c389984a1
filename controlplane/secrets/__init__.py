"""Users' secrets: set, listed, removed, and decrypted only for their owner's programs."""
