"""Event files: what sessions reported, as TensorBoard reads it."""
