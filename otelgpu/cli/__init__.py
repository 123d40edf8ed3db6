"""The command line: a contract (DESIGN.md section 11)."""
