"""What runs on this machine: processes, mappings, libraries, containers, connections; and where probes go."""
