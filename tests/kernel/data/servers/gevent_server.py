"""gevent's WSGI server: a line with its port. Requests are greenlets of one thread, and switch where they wait.

The work of each is done by another greenlet, a while after the answer.
"""

from collections.abc import Callable, Iterable

import gevent
import jobs
from gevent.pywsgi import WSGIServer

Start = Callable[[str, list[tuple[str, str]]], object]


def work_on(number: int) -> None:
    gevent.sleep(jobs.PAUSE_S)
    jobs.work(number, gevent.sleep)
    jobs.report(number)


def application(environ: dict[str, str], start: Start) -> Iterable[bytes]:
    number = int(environ["PATH_INFO"].rpartition("/")[2])
    gevent.sleep(jobs.CALLS * jobs.PAUSE_S)
    gevent.spawn(work_on, number)
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(number).encode()]


server = WSGIServer(("127.0.0.1", 0), application, log=None)
server.start()
print(server.server_port, flush=True)
server.serve_forever()
