"""A program whose Python stack is known, for every CPython from 3.9 on: it says it and stays in it.

Argument: which one. Writes one line of JSON, [[name, file, line], ...] with the leaf first, once it has come to the
bottom; the leaf's line is that of its `while`, which runs to the end. Qualified names where the version has them.
"""

import functools
import json
import sys
import threading
import time


def report_and_spin():
    frames = []
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    frames[0][2] = report_and_spin.__code__.co_firstlineno + 9
    print(json.dumps(frames), flush=True)
    while True: pass  # fmt: skip  # noqa: E701  (one line, which is the leaf's)


def nested():
    return (lambda: report_and_spin())()


class Service:
    def handle(self, value):
        return nested()

    @classmethod
    def make(cls):
        return functools.reduce(lambda left, right: cls().handle(right), [1, 2])


def through_c():
    """A C function in the middle, twice: sorted() and functools.reduce()."""
    return sorted([2], key=lambda each: Service.make())


def numbers(depth):
    if depth == 0:
        report_and_spin()
    for each in numbers(depth - 1):  # noqa: UP028  (a frame of its own, and 3.9 as 3.14)
        yield each


def generators():
    return [each + 1 for each in numbers(5)]


def deep(depth=500):
    return report_and_spin() if depth == 0 else deep(depth - 1)


def threads():
    thread = threading.Thread(target=through_c)
    thread.start()
    thread.join()


async def awaited(depth):
    return report_and_spin() if depth == 0 else await awaited(depth - 1)


def coroutines():
    awaited(4).send(None)


def ünïcödé_日本():
    report_and_spin()


def many_threads(others=200):
    """The one that runs is the oldest but for the main one: interpreters list it last."""
    ready = threading.Event()
    thread = threading.Thread(target=lambda: ready.wait() and through_c())
    thread.start()
    for _ in range(others):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    time.sleep(0.3)
    ready.set()
    thread.join()


def thousands_of_threads():
    many_threads(2100)


def interpreters():
    """In an interpreter of its own: the frames below the call that entered it are another interpreter's."""
    try:
        import _interpreters as module
    except ImportError:
        import _xxsubinterpreters as module
    run = getattr(module, "run_string", None) or module.exec
    arguments = "import sys; sys.argv = ['', 'through_c']"
    with open(__file__, encoding="utf-8") as file:
        source = file.read().replace('__name__ == "__main__"', "True")
    run(module.create(), f"{arguments}\nexec(compile({source!r}, {__file__!r}, 'exec'))")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
