"""Networks of sessions: namespaces, rules between them, and what gangs are told."""
