"""Projects: members, quotas and budgets, and rights to submit in them."""
