"""What is polled, not probed."""
