"""Who calls and may call what: tokens, certificates, the access table, TLS on listeners."""
