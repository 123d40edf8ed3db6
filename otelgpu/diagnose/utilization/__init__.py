"""Why a GPU is idle or little used: which of the known causes apply to a job, each with its cost. Pure.

profile, calls of CUDA ──► calls, idle ──┐
what devices read ─────► devices ────────┼─► findings, job_findings ─► diagnosis ─► sentences, utilization_page
processes, model, peaks ─────────────────┘
"""
