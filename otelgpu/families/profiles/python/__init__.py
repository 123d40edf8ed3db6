"""CPython as it lies in memory and in its image. Pure."""
