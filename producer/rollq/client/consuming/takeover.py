"""What a consumer takes over with a name: the batches that the process before it had not
acknowledged.
"""

import logging
import uuid
from dataclasses import replace
from functools import partial

from rollq.job import Purpose
from rollq.ledger.deliveries import Deliveries, Opened, named_session
from rollq.servers.retry import RetryLoop

log = logging.getLogger("rollq")


def take_over(
    deliveries: Deliveries,
    purpose: Purpose,
    name: str,
    hold_s: float,
    step: int | None,
    retry: RetryLoop,
) -> Opened:
    """Opens the name, and acknowledges the batches up to `step`, which a checkpoint holds. `steps`
    are the others.
    """
    text = uuid.uuid4().hex[:16]
    opened: Opened = retry(lambda: deliveries.open(name, purpose, text, hold_s, step))
    left = []
    for held in opened.steps:
        if step is not None and held <= step:
            token = f"{named_session(purpose, name)}/{held}"
            retry(partial(deliveries.ack, token, owner=opened.owner))
        else:
            left.append(held)
    if 0 < opened.known < opened.next:
        log.warning(
            "run %s: the checkpoint of consumer %s holds step %d, and the ledger knows "
            "only %d batches. Redis has"
            " lost its last writes, or this is another run: groups of the steps in "
            "between may come again",
            deliveries.run,
            name,
            step,
            opened.known,
        )
    return replace(opened, steps=left)
