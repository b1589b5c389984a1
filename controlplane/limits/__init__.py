"""Limits of users' storage, uploads and concurrent calls, and the room left in the stores."""
