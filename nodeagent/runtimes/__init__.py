"""Ways to run one replica: one protocol (`interface.py`), processes and the simulation's fake."""
