"""What sessions make of their devices: telemetry, charges, and idle sessions."""
