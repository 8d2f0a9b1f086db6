"""Credit by turn: a turn is trained on the rewards behind it, compared with those behind its
siblings' turns.

`Batch.arrays(advantages=TurnCredit(...))` is the way in. Standard library only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollq.errors import ContractError, FunctionError
from rollq.events import Acted, Observed, Sampled
from rollq.numbers import is_number
from rollq.training.advantages import check_estimator, dr_grpo, estimate, scaled
from rollq.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCredit:
    """Advantages of single turns. The return of a turn is the sum of the rewards that were given
    once it was sampled, in any trace: those of its own and of later actions (`Observation.reward`),
    and the episode's, which is the last.

    Turn t is compared with turn t of each sibling; a sibling that ended earlier takes part with its
    last turn. So a baseline depends on the siblings alone, never on when the trajectory itself
    stops. Where only the episode has a reward and nothing is discounted, each turn has the
    episode's advantage. A number without a turn, because a kill cut it off, has 0.0 and is not
    counted.
    """

    estimator: str = "rloo"
    """Name of an estimator of `rollq.training.advantages`. `grpo` divides all turns of a group by
    one standard deviation, that of the returns of turn 0.
    """
    discount: float = 1.0
    """Factor from 0 to 1 by which a reward counts less for each turn that was sampled before it was
    given.
    """
    rewards: Callable[[Trajectory], Mapping[int, float]] | None = None
    """Rewards by number of the turn, in place of those of the actions: what a judge says of turns,
    or of whole traces, each at the trace's last turn.
    """

    def __post_init__(self) -> None:
        check_estimator(self.estimator)
        if not is_number(self.discount) or not 0 <= self.discount <= 1:
            raise ContractError(f"a discount is a number from 0 to 1, not {self.discount!r}")

    def returns(self, trajectory: Trajectory, reward: float) -> list[float]:
        """The return of each turn, by its number. `reward` is the episode's. Reads texts, which
        `Batch.arrays` does not with other advantages.
        """
        return _by_number(self._returns(trajectory, reward))

    def _returns(self, trajectory: Trajectory, reward: float) -> dict[int, float]:
        """The return of each turn that sampled something, in the order of their numbers."""
        last_reply: dict[int, int] = {}  # only then could anyone act on the turn
        for place, event in enumerate(trajectory.events):
            if isinstance(event, Sampled):
                last_reply[event.turn] = place
        turn_at = {place: turn for turn, place in last_reply.items()}
        rewards = self._rewards_by_place(trajectory, last_reply)
        returns = dict.fromkeys(sorted(last_reply), 0.0)
        ahead = reward
        for place in range(len(trajectory.events) - 1, -1, -1):
            ahead += rewards.get(place, 0.0)
            if place in turn_at:
                returns[turn_at[place]] = ahead
                ahead *= self.discount
        return returns

    def advantages(
        self, trajectories: Sequence[Trajectory], rewards: Sequence[float]
    ) -> list[list[float]]:
        """The advantages of each turn by its number, for each member of a group. `rewards` are the
        episodes'.
        """
        by_turn = [self._returns(*member) for member in zip(trajectories, rewards, strict=True)]
        # A member that sampled nothing is compared by its reward.
        returns = [[*member.values()] for member in by_turn]
        for member, reward in zip(returns, rewards, strict=True):
            if not member:
                member.append(reward)
        first = [member[0] for member in returns]
        compared = []
        for place in range(max(map(len, by_turn), default=0)):
            returns_here = [member[min(place, len(member) - 1)] for member in returns]
            compared.append(self._compare(returns_here, first))
        return [self._of_member(member, turns, compared) for member, turns in enumerate(by_turn)]

    def _of_member(
        self, member: int, turns: Mapping[int, float], compared: Sequence[Sequence[float]]
    ) -> list[float]:
        """The advantages of a member's turns, by their numbers."""
        return _by_number({number: compared[place][member] for place, number in enumerate(turns)})

    def _compare(self, returns: Sequence[float], first: Sequence[float]) -> list[float]:
        if self.estimator == "grpo":
            return scaled(dr_grpo(returns), first)
        return estimate(returns, self.estimator)

    def _rewards_by_place(
        self, trajectory: Trajectory, last_reply: Mapping[int, int]
    ) -> dict[int, float]:
        """The rewards but for the episode's, by the place of their event."""
        rewards: dict[int, float] = {}
        if self.rewards is None:
            for place, event in enumerate(trajectory.events):
                reward = _reward(event)
                if reward is not None:
                    rewards[place] = reward
            return rewards
        try:
            rewards_of = self.rewards(trajectory).items()
            by_turn = {turn: float(1.0 * reward) for turn, reward in rewards_of}  # of no text
        except (Exception, SystemExit) as e:  # other people's code
            raise FunctionError(
                f"job {trajectory.job.id}: TurnCredit.rewards: {type(e).__name__}: {e}"
            ) from e
        for turn, reward in by_turn.items():
            if turn not in last_reply or not math.isfinite(reward):
                raise ContractError(
                    f"job {trajectory.job.id}: TurnCredit.rewards gave turn {turn} the reward "
                    f"{reward!r}; its segments have its turns (`segment.turns`), and a reward is a "
                    "finite number"
                )
            rewards[last_reply[turn]] = reward
        return rewards


def _by_number(turns: Mapping[int, float]) -> list[float]:
    return [turns.get(number, 0.0) for number in range(max(turns, default=-1) + 1)]


def _reward(event: object) -> float | None:
    if isinstance(event, Observed):
        return event.reward
    return event.action.get("reward") if isinstance(event, Acted) else None
