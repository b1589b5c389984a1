"""Commands about the platform: nodes, images, views, audit trail, backups."""
