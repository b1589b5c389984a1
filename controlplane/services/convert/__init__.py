"""Domain values to the contract, and back: the one place that knows both. A module a noun."""
