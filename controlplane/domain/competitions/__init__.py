"""Rules of competitions: phases, teams, standings and statistics."""
