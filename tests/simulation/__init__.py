"""Control plane, agents and clients together in one thread on a virtual clock and network."""
