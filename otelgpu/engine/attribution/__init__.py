"""Whose work an operation is, by the threads that made it. Pure."""
