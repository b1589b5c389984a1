"""Commands about users and what is theirs: sign-in, tokens, projects, secrets, webhooks."""
