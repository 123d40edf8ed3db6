"""Threads whose functions burn 60, 30 and 10 parts of their CPU time in turns of no one length, and say how much."""

import random
import sys
import threading
import time


def burn(ns):
    begin = time.thread_time_ns()
    while (end := time.thread_time_ns()) - begin < ns:
        for number in range(500):
            number * number
    return end - begin


def burns_sixty(part):
    return burn(6 * part)


def burns_thirty(part):
    return burn(3 * part)


def burns_ten(part):
    return burn(part)


def burns(seed):
    turns, functions = random.Random(seed), (burns_sixty, burns_thirty, burns_ten)
    spent = dict.fromkeys(functions, 0)
    while sum(spent.values()) < 2_000_000_000:
        part = int(turns.uniform(5e5, 15e5))
        for function in functions:
            spent[function] += function(part)
    reported.extend((function.__name__, 1, ns) for function, ns in spent.items())


reported = []
print("ready", file=sys.stderr, flush=True)
input()
threads = [threading.Thread(target=burns, args=(seed,)) for seed in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for line in reported:  # not in the threads: two prints at once can be mixed
    print(*line)
print("done", 0, 0, flush=True)
input()
