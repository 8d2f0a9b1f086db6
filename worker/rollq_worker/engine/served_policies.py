"""Policies that an engine serves, for all calls: its weights, and the adapters that it lacks."""

from collections.abc import Callable
from contextlib import nullcontext

from rollq_worker.engine.adapters import MissingAdapters
from rollq_worker.engine.call import Call
from rollq_worker.engine.weights import ASK_S, ServedWeights, WeightWaits
from rollq_worker.protocols import Generated
from rollq_worker.remote.waiting import wait


class ServedPolicies:
    """The policies of one engine, for all threads."""

    def __init__(self, ask: Callable[[], str | None], name: str, waits: WeightWaits) -> None:
        """`ask` and `name`: see `ServedWeights`."""
        self.adapters = MissingAdapters(name)
        self._weights = ServedWeights(ask, name)
        self._waits = waits

    @property
    def outdated(self) -> bool:
        """True if it lately served weights that a run does not take, or lacked a run's adapter."""
        return self._weights.outdated or self.adapters.any

    def suit(self, call: Call) -> bool:
        """True if the call accepts the weights that the engine serves. One that does not report
        them is tried.
        """
        if call.request.adapter is not None:
            return self.adapters.suit(call.request.adapter())
        return call.request.accepts is None or self._weights.suit(call.request.accepts)

    def serve(self, version: str) -> bool:
        """True if it serves weights of that version, as far as it reports them."""
        return self._weights.suit(version.__eq__)

    def may_keep(self, generated: Generated, call: Call) -> bool:
        """True if the call accepts all weights that sampled the reply. If not, wait for a moment.

        A router does not report the weights of its engines, so it is then asked for single tokens.
        """
        accepts = call.request.accepts
        if accepts is None:
            return True
        versions = [span.version for span in generated.versions]
        accepted = self._weights.sampled(versions, accepts)
        was_probe = call.probes
        call.probes = not accepted and not self._weights.is_reported
        if not accepted:
            with nullcontext() if call.request.pinned else self._waits.of(call.run):
                wait(ASK_S, call.check)
        return accepted and not was_probe

    def forget(self) -> None:
        """The engine may be another one now."""
        self._weights.forget()
