"""Training jobs that never ran: their operations as a profiler sees them on each rank, and what is wrong with them.

``shape``: ranks and what each has to do in a step; ``faults``: what goes wrong; ``schedule``: when everything happens,
for what waits on what; ``simulation``: all of it for a seed, with the truth; ``table``: rows of ``ops``.
"""
