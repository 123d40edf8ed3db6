"""Where functions of a library are, by pyelftools and not by what is tested."""

from __future__ import annotations

from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection


def offset_of(library: Path, symbol: str) -> int:
    """Where in the file an exported function begins."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection), f"{library} exports nothing"
        named = table.get_symbol_by_name(symbol)
        assert named, f"{library} has no {symbol}"
        (found,) = named
        address: int = found["st_value"]
        for segment in elf.iter_segments("PT_LOAD"):
            begin = segment["p_vaddr"]
            if begin <= address < begin + segment["p_filesz"]:
                return int(address - begin + segment["p_offset"])
    raise ValueError(f"{symbol} of {library} lies in no segment")
