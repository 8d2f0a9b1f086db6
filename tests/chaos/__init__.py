"""The fault suite: real processes on loopback, broken in every way there is a name for, and an account at the end.

    python -m tests.chaos [--row NAME ...] [--seeds N] [--storm SECONDS] [--json]

It stands outside: it uses the commands, the light client and its own recording of what the engine was asked. Every row
of the matrix (rows/) has a Redis, an engine and workers of its own; account.py decides whether anything was lost.
"""
