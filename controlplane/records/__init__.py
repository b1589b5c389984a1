"""Records of sessions: logs and metrics taken in, downsampled, archived, let go, summed up."""
