"""What goes wrong slowly or unseen: probes and warnings, and the health that callers ask for."""
