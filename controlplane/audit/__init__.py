"""The audit trail, for administrators, and how long it is kept."""
