"""Commands about datasets and storage."""
