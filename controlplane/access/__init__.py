"""Authentication and authorization: tokens, certificates, the access table, TLS on listeners."""
