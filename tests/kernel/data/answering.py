"""Answers HTTP requests, one connection after the other: ``answering.py TRACER COUNT``; prints its port.

It receives under no context and answers request n under trace n, n, … (16 bytes) and span n + 1, … (8 bytes).
"""

import ctypes
import socket
import sys

tracer = ctypes.CDLL(sys.argv[1])
tracer.publish.argtypes = (ctypes.c_char_p,)

with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    for number in range(1, int(sys.argv[2]) + 1):
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1 << 16)
            record = bytes([number] * 16 + [number + 1] * 8 + [1, 1, 0, 0])
            tracer.publish(record)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            tracer.publish(None)
