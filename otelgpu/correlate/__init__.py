"""Who did this work: as-of joins, folding, requests and their operations. Pure."""
