"""Commands about users and their resources: login, tokens, projects, secrets, webhooks."""
