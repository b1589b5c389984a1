"""What the node keeps and fetches: datasets, code, checkpoints, media, and the room that they take."""
