"""The engine: it decodes, attributes, folds and measures what any family brings, and names none. Pure."""
