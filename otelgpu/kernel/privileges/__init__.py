"""Capabilities that the program has, needs, and gives up."""
