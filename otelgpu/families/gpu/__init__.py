"""GPUs: their vendors' APIs, memory, device time, frameworks, and the devices themselves."""
