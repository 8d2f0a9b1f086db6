"""The fault suite: real processes on loopback, one kind of fault per row, and an account of every
job at the end.

    python -m tests.chaos [--row NAME ...] [--seeds N] [--storm SECONDS] [--json]

It uses the commands, the light client and its own recording of the engine's replies. Every row of
the matrix (rows/) has its own Redis, engine and workers; result.py decides whether anything was
lost.
"""
