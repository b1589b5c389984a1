"""A library that answers as NVML does, for machines without a GPU."""
