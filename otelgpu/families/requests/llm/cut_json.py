r"""Makes a JSON text of the beginning of one: what is complete of it, its open brackets closed.

In: the first bytes of a text. Out: a JSON text with the same members as far as they go, or None where there are none.
It must not decode values. RFC 8259.

Example: ``b'{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"id":1,"tok'`` gives
``b'{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"id":1}]}}]}'``.
"""

from __future__ import annotations

import re
from typing import Final

MAX_BYTES: Final = 4096
"""Of a beginning that are looked at: what an API's events begin with is shorter."""
_MAX_DEPTH: Final = 32
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],]|[^"{}\[\],]+', re.DOTALL)
_CLOSES: Final = {b"{": ord("}"), b"[": ord("]")}


def closed(text: bytes) -> bytes | None:
    """Return the text that ``text`` is the beginning of, without what is not complete."""
    text = text[:MAX_BYTES]
    open_brackets = bytearray()  # what closes them, the outermost first
    end, closing = 0, b""
    position = 0
    while (token := _TOKEN.match(text, position)) is not None:
        found = token[0]
        if found in _CLOSES:
            if len(open_brackets) == _MAX_DEPTH:
                break
            open_brackets.append(_CLOSES[found])
            end, closing = token.end(), bytes(open_brackets)
        elif found in (b"}", b"]"):
            if not open_brackets or open_brackets.pop() != found[0]:
                return None
            end, closing = token.end(), bytes(open_brackets)
        elif found == b",":
            end, closing = position, bytes(open_brackets)
        position = token.end()
    return text[:end] + closing[::-1] if end else None
