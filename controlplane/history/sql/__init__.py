"""The history's parts in SQL, written once for every database.

A `Dialect` covers the differences between databases; transactions and their failures are handled
by each database (`history/sqlite`, `history/postgresql`).
"""
