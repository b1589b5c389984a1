"""What replicas wrote, read from their files and sent up, and acknowledged."""
