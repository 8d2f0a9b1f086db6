"""Which policies an engine serves, for all calls: its weights, and the adapters that it lacks."""

from collections.abc import Callable
from contextlib import nullcontext

from rollq_worker.engine.adapters import MissingAdapters
from rollq_worker.engine.call import Call
from rollq_worker.engine.weights import ASK_S, ServedWeights, WeightWaits
from rollq_worker.protocols import Generated
from rollq_worker.remote.waiting import wait


class ServedPolicies:
    """Those of one engine, for all threads."""

    def __init__(self, get: Callable[[str], object], name: str, waits: WeightWaits) -> None:
        """`get` and `name`: see `ServedWeights`."""
        self.adapters = MissingAdapters(name)
        self._weights = ServedWeights(get, name)
        self._waits = waits

    @property
    def outdated(self) -> bool:
        """Whether it serves weights that a run does not take, or lacks its adapter, as far as this
        process has seen lately.
        """
        return self._weights.outdated or self.adapters.any

    def suit(self, call: Call) -> bool:
        """Whether the call accepts the weights that the engine serves. One that does not tell them
        is tried.
        """
        if call.request.adapter is not None:
            return self.adapters.suit(call.request.adapter())
        return call.request.accepts is None or self._weights.suit(call.request.accepts)

    def serve(self, version: str) -> bool:
        """Whether it serves weights of that version, as far as it tells."""
        return self._weights.suit(version.__eq__)

    def may_keep(self, generated: Generated, call: Call) -> bool:
        """Whether the call accepts all weights that sampled the reply. If not, it waits for a
        moment.

        A router does not tell what its engines serve, so it is asked for single tokens then.
        """
        if (accepts := call.request.accepts) is None:
            return True
        accepted = self._weights.sampled([span.version for span in generated.versions], accepts)
        only_asked, call.probes = call.probes, not accepted and not self._weights.told
        if not accepted:
            with nullcontext() if call.request.pinned else self._waits.of(call.run):
                wait(ASK_S, call.check)
        return accepted and not only_asked

    def forget(self) -> None:
        """The engine may be another one now."""
        self._weights.forget()
