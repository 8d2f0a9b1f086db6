"""The tokens of a simulated rollout: those of a recorded episode, or drawn from the fleet's amounts."""

from __future__ import annotations

from random import Random

from rollq_worker.simulation.fleet.engines import Rollout
from rollq_worker.simulation.fleet.fleet import Fleet, Jobs


def open_episode(rollout: Rollout, fleet: Fleet, random: Random) -> None:
    """Choose its turns and its first prompt."""
    jobs = fleet.jobs
    if jobs.episodes:
        episode = random.choice(jobs.episodes)
        rollout.episode, rollout.turns, prompt = episode.turns, len(episode.turns), episode.prompt
    else:
        rollout.turns, prompt = jobs.turns.whole(random), jobs.prompt_tokens.whole(random)
    rollout.tokens = rollout.prompt = min(prompt, jobs.max_tokens - 1)
    prompt = rollout.prompt
    policy = min(fleet.engines.policy_tokens, prompt)
    own = (("group", rollout.group.seq), prompt - policy)
    rollout.chain = (("policy", policy), own) if policy else (own,)


def draw_turn(rollout: Rollout, jobs: Jobs, random: Random) -> None:
    """Choose the tokens of its next turn."""
    if rollout.episode:
        rollout.sampled, rollout.observed = rollout.episode[rollout.turn]
    else:
        rollout.sampled, rollout.observed = jobs.sampled_tokens.whole(random), jobs.observed_tokens.whole(random)
    left = jobs.max_tokens - rollout.tokens
    if left <= rollout.sampled + rollout.observed:  # the budget of tokens is spent in this turn
        rollout.sampled, rollout.observed, rollout.turns = max(1, min(rollout.sampled, left)), 0, rollout.turn + 1
