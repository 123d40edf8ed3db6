"""Rows of operations to the bytes of their spans, by a small library in C. Pure: nothing is read, kept or sent."""
