"""The in-process source's ring memory and its peers."""
