"""Known problems: what an error code, a function, a line of a log or a counter tells, and what to change."""
