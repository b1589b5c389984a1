"""Commands about sessions: submit, list, follow, compare, change."""
