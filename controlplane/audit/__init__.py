"""The audit trail, for administrators, and its retention."""
