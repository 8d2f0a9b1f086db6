"""Random traffic for a modelled engine, and a driver that plays it: submissions and aborts in order of time."""

from dataclasses import dataclass, field, replace
from math import inf

from hypothesis import strategies as st

from rollq_worker.simulation.engine_model import EngineModel, EngineShape, Finished, Request

SMALL = EngineShape(
    step_s=0.020123456789,  # odd, so that no arrival of a round millisecond meets the end of a step
    prefill_token_s=1.0123456789e-4,
    running_s=1.0123456789e-3,
    kv_token_s=1e-6,
    attended_pair_s=1e-8,
    kv_tokens=1000,
    max_running=8,
    chunk_tokens=128,
)
ROOMY = replace(SMALL, kv_tokens=1_000_000, max_running=64, chunk_tokens=1_000_000)


@dataclass(frozen=True)
class Arrival:
    at: float
    request: Request
    aborted_at: float = inf


@dataclass
class Outcome:
    finished: list[Finished] = field(default_factory=list)
    aborted: dict[str, int] = field(default_factory=dict)
    """Request ids of those that were aborted in flight, and the tokens they had sampled."""


@st.composite
def arrivals(draw: st.DrawFn, most: int = 25) -> list[Arrival]:
    """Requests of a few groups with a shared policy, some aborted, none too large for `SMALL`."""
    found = []
    for number in range(draw(st.integers(1, most))):
        group = draw(st.integers(0, 3))
        prefix = [("policy", 200), (f"group {group}", 30 + group), (f"job {number}", draw(st.integers(1, 300)))]
        limit = draw(st.none() | st.integers(0, 900))
        rid, output = f"r{number}", draw(st.integers(0, 400))
        request = Request(rid, tuple(prefix[draw(st.integers(0, 2)) :]), f"o{number}", output, limit)
        at = draw(st.integers(0, 8000)) / 1000
        aborted_at = at + draw(st.integers(1, 10_000)) / 1000 if draw(st.integers(0, 4)) == 0 else inf
        found.append(Arrival(at, request, aborted_at))
    return found


def play(model: EngineModel, traffic: list[Arrival], look_every: float = inf) -> Outcome:
    """Play the traffic to its end; `look_every` seconds the load is read and what has finished is taken."""
    calls = [(one.at, 0, one.request) for one in traffic]
    calls += [(one.aborted_at, 1, one.request) for one in traffic if one.aborted_at < inf]
    calls.sort(key=lambda call: call[:2])
    outcome, looked = Outcome(), 0.0
    for at, kind, request in [*calls, (inf, 2, None)]:
        while (event := min(model.next_event(), looked + look_every)) < at:
            looked = event if event == looked + look_every else looked
            model.load(event)
            outcome.finished += model.advance(event)
            if model.next_event() == inf and at == inf:
                break
        if kind == 0:
            model.submit(request, at)
        elif kind == 1 and (sampled := _abort(model, request, at)) is not None:
            outcome.aborted[request.rid] = sampled
    return outcome


def _abort(model: EngineModel, request: Request, at: float) -> int | None:
    return model.abort(request.rid, at) if model.progress(request.rid, at) is not None else None
