"""Routed experts: the experts of a mixture-of-experts model that each token went to, for trainers
that replay them.

The engine reports them with each reply, for the tokens that were new to it, and `Sampled` holds
them. Joined, they have one row for each token of `Trajectory.tokens`. The engine never reads the
last token that it sampled, so it has no row of that token, nor of a bridge that nothing was sampled
after. Those tokens, which end a trace, get a filler.
"""

from rollq.errors import ContractError
from rollq.events import Prompt, Sampled
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ExpertShape, Extra


def routed_experts(trajectory: Trajectory) -> Extra:
    """One row for each token of `trajectory.tokens`. Raises ContractError."""
    shape = ExpertShape.read(trajectory.job.routed_experts)
    rows: list[bytes] = []
    filler = shape.filler()
    missing = 0
    for event in trajectory.spans:
        if isinstance(event, Prompt):
            rows.append(filler * missing)
            missing = 0
        missing += len(event.ids)
        if isinstance(event, Sampled):
            wanted = (missing - 1, shape.layers, shape.top_k)
            part = event.experts
            if part is None or part.shape != wanted or part.dtype != shape.dtype:
                where = f"job {trajectory.job.id}: routed experts of turn {event.turn}"
                recorded = f"{part.dtype} {part.shape}" if part else "nothing"
                raise ContractError(f"{where}: {recorded} where {shape.dtype} {wanted} belongs")
            rows.append(part.data)
            missing = 1
    return shape.part(b"".join([*rows, filler * missing]))
