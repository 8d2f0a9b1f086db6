"""Imported by the fork server. It loads the environments once, so that the processes forked from it
share their data.
"""

import os
from contextlib import suppress

from rollq_worker.environments import domain
from rollq_worker.process.attempts.isolation import PRELOAD_VARIABLE, end_with_worker

end_with_worker()

for _name in os.environ.get(PRELOAD_VARIABLE, "").split():
    with suppress(Exception):  # an attempt that opens it meets the same error and reports it
        _domain = domain(_name)
        # so that what the domain caches is there before the fork
        _domain.task(next(iter(_domain.splits())), 0)
