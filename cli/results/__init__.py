"""Commands for reported and saved results: charts, values, media, checkpoints."""
