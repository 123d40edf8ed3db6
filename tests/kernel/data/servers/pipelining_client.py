"""A client that sends requests before it has been answered: ``pipelining_client.py FIRST AT_ONCE TIMES URL``.

It fails if they are not all answered, in order.
"""

import socket
import sys
from urllib.parse import urlsplit

FIRST, AT_ONCE, TIMES = map(int, sys.argv[1:4])
to = urlsplit(sys.argv[4])

with socket.create_connection((to.hostname, to.port)) as connection, connection.makefile("rb") as answers:
    for first in range(FIRST, FIRST + AT_ONCE * TIMES, AT_ONCE):
        numbers = range(first, first + AT_ONCE)
        connection.sendall(
            b"".join(b"GET /job/%d HTTP/1.1\r\nHost: here\r\n\r\n" % number for number in numbers)
        )
        for number in numbers:
            head = dict(
                line.lower().split(b": ", 1) for line in iter(answers.readline, b"\r\n") if b": " in line
            )
            if b"content-length" in head:
                body = answers.read(int(head[b"content-length"]))
            else:  # one chunk, and the last
                body = answers.read(int(answers.readline(), 16))
                assert answers.read(7) == b"\r\n0\r\n\r\n"
            assert int(body) == number
