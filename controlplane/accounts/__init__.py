"""Users, their tokens, and the join tokens of machines."""
