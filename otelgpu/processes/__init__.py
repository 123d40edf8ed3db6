"""What runs here: processes, containers, pods, libraries. Does I/O."""
