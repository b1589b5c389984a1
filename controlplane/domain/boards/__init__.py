"""Rules of boards and submissions: scores, ranks, limits, and checks of what users set and predict."""
