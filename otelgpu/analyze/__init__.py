"""What can only be said of collected data: of several hosts together, after the fact. Pure."""
