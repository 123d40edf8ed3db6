"""CPython: its version, its runtime and its structures, as they are found in a file."""
