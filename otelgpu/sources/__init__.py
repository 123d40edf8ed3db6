"""Where records come from: live rings, an in-process library, a capture, two of them together. Does I/O."""
