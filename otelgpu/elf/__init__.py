"""ELF, DWARF and BTF, read into numpy. Pure."""
