"""A server whose handlers give the GPU work to threads that have read no request: /job/N makes cudaMalloc(N).

In: the way of handing over, the number of workers, the path of a libcudart. Out: a line with its port. It serves
until it is killed. The ways:

* `executor`, `queue`: to a `ThreadPoolExecutor`; to threads that take from a `queue.Queue`.
* `locks`: an executor's, where handlers and jobs write logs and fight for locks.
* `shares`: an executor's, where both wait for a semaphore and for a pool of connections.
* `between`: the same, where handlers do that while their jobs run.
* `nested`: an executor's jobs give theirs to another executor.
* `batch`: a thread takes all jobs that wait, and does one piece of work for all: cudaMalloc(the first's number).
* `several`: three jobs for each request, which waits for them one by one.
"""

import ctypes
import io
import logging
import queue
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAY, WORKERS, LIBRARY = sys.argv[1], int(sys.argv[2]), sys.argv[3]
cudart = ctypes.CDLL(LIBRARY)
cudart.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
cudart.cudaFree.argtypes = [ctypes.c_void_p]


def job(size: int) -> int:
    for _ in range(3):
        pointer = ctypes.c_void_p()
        assert cudart.cudaMalloc(ctypes.byref(pointer), size) == 0
        time.sleep(0.001)
        assert cudart.cudaFree(pointer) == 0
    return sum(i * i for i in range(2000))  # holds the interpreter's lock for a while


lock, recursive, semaphore = threading.Lock(), threading.RLock(), threading.Semaphore(2)
connections: queue.Queue[int] = queue.Queue()  # whoever wants one waits for another to give it back
for each in range(2):
    connections.put(each)
logging.basicConfig(level=logging.INFO, stream=io.StringIO())


def contend() -> None:
    """As programs do that log, and share what there is little of."""
    if WAY == "locks":
        with lock:
            time.sleep(0.0003)
        logging.info("between locks")
        with recursive:
            time.sleep(0.0003)
        return
    with semaphore:
        time.sleep(0.001)
    connection = connections.get()
    time.sleep(0.001)
    connections.put(connection)


def contending_job(size: int) -> int:
    contend()
    done = job(size)
    contend()
    return done


class Queue:
    def __init__(self) -> None:
        self.jobs: queue.Queue[tuple[int, Future[int]]] = queue.Queue()
        for _ in range(WORKERS):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        while True:
            size, done = self.jobs.get()
            done.set_result(job(size))

    def submit(self, _: object, size: int) -> Future[int]:
        done: Future[int] = Future()
        self.jobs.put((size, done))
        return done


class Batches(Queue):
    def work(self) -> None:
        while True:
            taken = [self.jobs.get()]
            while not self.jobs.empty():
                taken.append(self.jobs.get())
            result = job(taken[0][0])
            for _, done in taken:
                done.set_result(result)


if WAY == "queue":
    pool: Any = Queue()
elif WAY == "batch":
    pool = Batches()
else:
    pool = ThreadPoolExecutor(WORKERS)
inner = ThreadPoolExecutor(WORKERS)


def nested_job(size: int) -> int:
    return inner.submit(job, size).result() + job(size)


def handle(size: int) -> int:
    if WAY in ("locks", "shares"):
        contend()
        done: int = pool.submit(contending_job, size).result()
        contend()
        return done
    if WAY == "between":
        promised = pool.submit(contending_job, size)
        contend()
        return int(promised.result())
    if WAY == "several":
        return sum(each.result() for each in [pool.submit(job, size) for _ in range(3)])
    return int(pool.submit(nested_job if WAY == "nested" else job, size).result())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(handle(int(self.path.rpartition("/")[2]))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
