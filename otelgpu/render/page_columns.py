"""Numbers and text as the page of flame graphs reads them. Pure.

Columns are base64 of little-endian numbers behind the letter of their type: ``B`` uint8, ``H`` uint16, ``I`` uint32,
``d`` float64.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_FORMATS: Final = {"B": "u1", "H": "<u2", "I": "<u4", "d": "<f8"}


def column(values: npt.NDArray[Any], kind: str) -> str:
    """Numbers for the page."""
    return kind + base64.b64encode(np.asarray(values).astype(_FORMATS[kind]).tobytes()).decode()


def clean(text: str) -> str:
    """``text`` without what UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()
