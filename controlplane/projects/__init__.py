"""Projects: members, quotas and budgets, and who may submit what in them."""
