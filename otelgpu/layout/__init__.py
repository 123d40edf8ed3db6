"""Foreign layouts read from their own descriptions: BTF and ELF in, numpy dtypes and symbols out. Pure."""
