"""What attackers run: scripts of Python, for :meth:`tests.hostile.stage.Stage.attack_with`.

Each prints a line when it is under way.
"""

FLOOD = """
import contextlib, os, socket
REQUESTS = b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" * 606
ANSWERS = b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n" * 303
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0flood" + str(os.getpid()))
listener.listen(64)
client = os.fork() == 0
if not client:
    print("begun", flush=True)
while True:
    if client:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(listener.getsockname())
    else:
        connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        for _ in range(4000):
            if client:
                connection.sendall(REQUESTS)
                connection.recv(65536)
            else:
                connection.recv(16384)
                connection.sendall(ANSWERS)
                connection.sendall(ANSWERS)
"""
"""Requests of 27 bytes, pipelined, to a server of its own."""

IDLE = """
import os, resource, signal, socket, sys
wanted = int(sys.argv[1])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
each = min((most - 50) // 2, 10_000)
pipes = []
while wanted > 0:
    here, wanted = min(wanted, each), wanted - each
    ready, done = os.pipe()
    pipes.append(ready)
    if os.fork():
        os.close(done)
        continue
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\\0idle" + str(os.getpid()))
    listener.listen(64)
    held = []
    for _ in range(here):
        client = socket.socket(socket.AF_UNIX)
        client.connect(listener.getsockname())
        held += [client, listener.accept()[0]]
    os.write(done, b"x")
    signal.pause()
for ready in pipes:
    assert os.read(ready, 1)
os.write(1, b"begun\\n")
signal.pause()
"""
"""So many connections in which nothing happens, of as many processes as they need. Arguments: how many."""

MODELS = """
import json, os, socket, sys, time
def chunk(event):
    data = b"data: " + event + b"\\n\\n"
    return b"%x\\r\\n%s\\r\\n" % (len(data), data)
HEAD = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
processes, models, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.write(1, b"begun\\n")
for _ in range(processes - 1):
    if os.fork() == 0:
        break
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0models" + str(os.getpid()))
listener.listen()
client = socket.socket(socket.AF_UNIX)
client.connect(listener.getsockname())
server, _ = listener.accept()
for number in range(models):
    model = "model-%d-%d" % (os.getpid(), number)
    body = json.dumps({"model": model, "stream": True, "messages": []}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: m\\r\\nContent-Type: application/json\\r\\n"
    client.sendall(head + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    server.recv(65536)
    event = {"object": "chat.completion.chunk", "model": model, "choices": [{"index": 0, "delta": {"content": "a"}}]}
    server.sendall(HEAD + chunk(json.dumps(event).encode()))
    server.sendall(chunk(json.dumps(event).encode()) + chunk(b"[DONE]") + b"0\\r\\n\\r\\n")
    client.recv(65536)
    time.sleep(pause_s)
os.write(1, b"ended\\n")
time.sleep(60)
"""
"""Requests for ever new models, to servers of its own. Arguments: processes, models of each, seconds between two."""

MAPPER = """
import mmap, os
file = os.open("/proc/self/exe", os.O_RDONLY)
print("begun", flush=True)
while True:
    for _ in range(100):
        mmap.mmap(file, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
"""
"""Maps its program and lets it go again, without a pause."""

CUTTER = """
import ctypes.util, mmap, os, sys, tempfile, time
with open(sys.argv[1], "rb") as file:
    content = file.read()
print("begun", flush=True)
with tempfile.TemporaryDirectory() as folder:
    for number in range(1_000_000):
        path = f"{folder}/lib{number}.so"
        with open(path, "wb+") as file:
            file.write(content)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
            time.sleep(number % 20 * 0.0005)
            os.truncate(path, 4096)
            mapped.close()
        os.unlink(path)
"""
"""Maps copies of a library, each of which is cut off a moment later. Arguments: the library."""

LAUNCHER = """
import ctypes, sys, time
class Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]
runtime, kernels = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
names = sys.argv[3:]
print("begun", flush=True)
time.sleep(1)  # until it is probed
for round in range(600):
    for name in names:
        kernel = ctypes.cast(kernels[name], ctypes.c_void_p)
        runtime.cudaLaunchKernel(kernel, Dim3(1, 1, 1), Dim3(1, 1, 1), None, ctypes.c_size_t(0), None)
    time.sleep(0.02)
"""
"""Launches kernels of these names. Arguments: the runtime, a library that has them, the names."""

PEER = """
import os, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from otelgpu.kernel.injection.server import read_library
from otelgpu.kernel.loader import read_image
from types import SimpleNamespace
from tests.rig.inject_client import HEADER_BYTES, InjectClient, launches
peers, calls = int(sys.argv[3]), int(sys.argv[4])
layout, btf = read_library().layout, read_image("cuda").btf
for _ in range(peers - 1):
    if os.fork() == 0:
        break
client = InjectClient(SimpleNamespace(path=sys.argv[2]), layout, btf)
client.threads["owner"] = os.getpid()
if calls:  # one after another
    for number in range(calls):
        client.write(client.call())
        time.sleep(0.02)
    os.write(1, b"written\\n")
    time.sleep(60)
ring_bytes = client.rings.shape[1]
records = launches(btf, 1 << 14, ends_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))
frame = HEADER_BYTES + records.shape[1]
count = (ring_bytes - HEADER_BYTES) // frame
framed = np.zeros(ring_bytes, dtype=np.uint8)
rows = framed[: count * frame].reshape(count, frame)
rows[:, :4] = np.frombuffer(np.uint32(records.shape[1]).tobytes(), dtype=np.uint8)
rows[:, HEADER_BYTES:] = np.resize(records, (count, records.shape[1]))
rest = np.uint32((1 << 30) | (ring_bytes - count * frame - HEADER_BYTES))
framed[count * frame : count * frame + 4] = np.frombuffer(rest.tobytes(), dtype=np.uint8)
client.rings[:] = framed
os.write(1, b"begun\\n")
while True:
    client.threads["producer"] = client.threads["consumer"] + ring_bytes  # as full as can be, at all times
    time.sleep(0.001)
"""
"""Peers of the in-process source, whose rings are full at all times; or that make calls one after the other.

Arguments: the checkout, the agent's socket, how many peers, how many calls (0: without end)."""

UPLOADS = """
import os, socket, sys, time
uploads = int(sys.argv[1])
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0uploads" + str(os.getpid()))
listener.listen(16)
HEAD = b"POST /v1/completions HTTP/1.1\\r\\nHost: u\\r\\nContent-Length: 9999999\\r\\n\\r\\n"
BODY = HEAD + b'{"model":"m","prompt":"' + b"x" * 230_000
held = []
for number in range(uploads):
    client = socket.socket(socket.AF_UNIX)
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    for at in range(0, len(BODY), 16384):
        client.sendall(BODY[at : at + 16384])
        server.recv(16384)
    held += [client, server]
    time.sleep(0.005)
os.write(1, b"begun\\n")
while True:
    time.sleep(1)
"""
"""Uploads that come to a halt, no faster than the ring takes them. Arguments: how many."""

SPECIAL = """
import mmap, os, shutil, socket, sys, tempfile, time
print("begun", flush=True)
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/libcudart.so.12"
    for number in range(1_000_000):
        shutil.copyfile(sys.argv[1], f"{path}.new")
        os.rename(f"{path}.new", path)
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        time.sleep(number % 10 * 0.0005)
        os.unlink(path)
        if number % 3 == 0:
            os.mkfifo(path)
        elif number % 3 == 1:
            socket.socket(socket.AF_UNIX).bind(path)
        else:
            os.symlink("/dev/tty", path)
        time.sleep(0.005)
        mapped.close()
        os.unlink(path)
"""
"""Maps libraries, in whose places FIFOs, sockets and links to devices come a moment later. Arguments: a library."""
