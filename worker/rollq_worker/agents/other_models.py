"""Models that are not trained, in the episode of an agent program.

The journal has their replies, by what was asked, and no traces of them. So an attempt that resumes
and asks the same is given the same.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import hashlib
import json
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from rollq.events import Event, Replied, VersionSpan
from rollq_worker.protocols import Engine, Generated, SampleRequest


class OtherModels:
    """`protocols.Engine` of these models for one attempt."""

    def __init__(
        self, engine: Engine, recorded: Sequence[Event], record: Callable[[Event], None]
    ) -> None:
        """`recorded`: the events of an earlier attempt. `record` makes an event durable."""
        self.room = engine.room
        self._engine = engine
        self._record = record
        self._recorded: defaultdict[str, deque[Replied]] = defaultdict(deque)
        for event in recorded:
            if isinstance(event, Replied):
                self._recorded[event.request].append(event)

    def generate(self, request: SampleRequest) -> Generated:
        """See `protocols.Engine`."""
        key = _key(request)
        with suppress(IndexError):  # of equal requests at once, one takes the last
            return _again(self._recorded[key].popleft())
        at = time.time()
        reply = self._engine.generate(request)
        self._record(
            Replied(
                model=request.model,
                request=key,
                ids=reply.ids,
                finish=reply.finish,
                text=reply.text,
                at=at,
                seconds=time.time() - at,
            )
        )
        return reply


def _key(request: SampleRequest) -> str:
    options = [request.model, dict(request.sampling), request.max_new_tokens]
    text = json.dumps(options, sort_keys=True).encode()
    return hashlib.blake2b(text + request.ids.tobytes(), digest_size=16).hexdigest()


def _again(reply: Replied) -> Generated:
    count = len(reply.ids)
    return Generated(
        ids=reply.ids,
        logprobs=array("f", bytes(4 * count)),
        versions=[VersionSpan("", 0, count)],
        finish=reply.finish,
        text=reply.text,
    )
