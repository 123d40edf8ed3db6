"""Operations and exchanges → spans, metrics, a summary. Pure; the shared names live in ``names.py``."""
