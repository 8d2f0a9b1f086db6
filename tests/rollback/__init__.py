"""Rollbacks: Redis is killed, loses the tail of its append-only file and comes back, while all of
its clients live on.

    python -m tests.rollback [--seeds N] [--seed FIRST] [--every K]

A history is a scripted life of one run: producers, players in place of workers, consumers, a
reaper, all on the public interfaces and a real Redis. It is stopped after any of its steps, and any
number of the file's last records is cut off, before, inside or after a record. Then everybody goes
on, and in the end every group must have been delivered and acknowledged, each trajectory must come
from one chain of attempts, and the accounts must be right.
"""
