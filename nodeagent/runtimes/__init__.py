"""Ways to run one replica: one protocol (`interface.py`), processes, containers and the simulation's fake."""
