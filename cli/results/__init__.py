"""Commands about what sessions reported and saved: charts, values, media, checkpoints."""
