"""Competitions: phases of datasets' boards with teams, standings, and a result that others can check."""
