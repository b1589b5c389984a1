"""Networks of sessions: namespaces, rules between them, and variables of gangs."""
