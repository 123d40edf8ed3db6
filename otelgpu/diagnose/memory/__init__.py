"""What device memory is for, what of it grows, and why an allocation failed: from profiles to a report. Pure.

``observations``: rows of profiles, as snapshots of a process; ``levels``: what allocators and the driver say beside;
``categories``: what an allocation is for, by its frames; ``accounting``: a snapshot's bytes by category, whose sum is
the ledger's; ``growth``: places that allocate and free nothing; ``diagnosis``: all of it; ``verdicts``: the document;
``sentences``: the same for a person.
"""
