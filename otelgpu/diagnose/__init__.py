"""From collected facts to verdicts. Pure."""
