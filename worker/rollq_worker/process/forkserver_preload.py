"""Imported by the fork server: loads the environments once, so that the processes forked from it share their data."""

import os
from contextlib import suppress

from rollq_worker.environments import domain
from rollq_worker.process.isolation import PRELOAD, serve_until_death

serve_until_death()

for _name in os.environ.get(PRELOAD, "").split():
    with suppress(Exception):  # whoever opens it meets the same, and can say so
        _domain = domain(_name)
        _domain.task(next(iter(_domain.splits())), 0)  # what it makes when it is first asked
