"""The history's parts in SQL, written once for every database.

Where databases differ, a `Dialect` says how; how transactions begin, end and fail is each
database's own (`history/sqlite`, `history/postgresql`).
"""
