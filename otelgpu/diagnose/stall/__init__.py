"""Why a program stands still, time and again: from profiles of its threads to verdicts. Pure.

``observations``: rows of profiles, by thread; ``causes``: what a call or a wait is for, by its frames;
``activities``: a thread's rows as one timeline; ``critical``: the thread that a program waits for; ``rhythm``: the
steps that it goes in; ``gaps``: what makes steps longer than usual, and what it costs; ``diagnosis``: all of it, in
this order; ``verdicts``: the document; ``sentences``: the same for a person.
"""
