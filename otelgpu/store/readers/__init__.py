"""One module for each kind of file. Each takes a store and its files, and raises nothing that a file could cause."""
