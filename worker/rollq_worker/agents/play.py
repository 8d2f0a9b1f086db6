"""Plays a job with an agent program: the program, its endpoint, the episode and the journal brought
together.

The counterpart of `rollq_worker.episode.loop.play` for agents that bring their own loop.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache

from rollq.env import RESPOND, Action, Environment, RewardFunction, User
from rollq.env import Episode as AgentsEpisode
from rollq.errors import AgentFailure
from rollq.events import Closed, Event, Stop
from rollq.job import Job
from rollq.token_stats import changed_prompts
from rollq.trajectory import Header, Trajectory
from rollq_worker.agents.dialects.chat_completions import MODEL
from rollq_worker.agents.endpoint import Address, AgentEndpoint
from rollq_worker.agents.episode import AgentEpisode
from rollq_worker.agents.programs.running import AgentKilled, Program, Starter
from rollq_worker.agents.recorded import AgentJournal
from rollq_worker.agents.traces import RendererOf
from rollq_worker.episode.environment_checks import with_end
from rollq_worker.protocols import Engine
from rollq_worker.text.whole_text import whole_characters

CHANGES = "system_prompt"
"""The entry of the grade's info with the words of the system prompt that change."""
log = logging.getLogger(__name__)

AGENT_LIMIT_S = 900.0
"""Longest time in seconds for which an agent may neither ask for a turn nor make a step."""
SIGNAL_S = 1.0
"""Seconds in which a signal that has ended an agent reaches its worker: systemd and Slurm stop all
processes of a service at once.
"""
OUTPUT = "agent_output"
"""The entry of the grade's info with the end of a command's output."""


def play_with_agent(
    job: Job,
    start: Starter,
    endpoint: AgentEndpoint,
    *,
    engine: Engine,
    renderer_of: RendererOf,
    environment: Environment,
    user: User,
    journal: AgentJournal,
    header: Header | None = None,
    recorded: Sequence[Event] = (),
    reward: RewardFunction | None = None,
    idle: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Trajectory:
    """Plays `job` to its end, as `loop.play` does, with the agent that `start` starts.

    `recorded` are the events of an earlier attempt. The agent is started again, and asks the engine
    only for turns that the journal lacks. The time for which it is at work by itself is spent in a
    block of `idle`. Raises AgentFailure when it crashes, and Diverged when it does not repeat
    its earlier requests; else as `loop.play`.
    """
    episode = AgentEpisode(
        job,
        engine=engine,
        renderer_of=renderer_of,
        environment=environment,
        user=user,
        journal=journal,
        recorded=recorded,
    )
    episode.world.open()
    with endpoint.serve(episode) as address:
        program = start(_for_agent(episode, address), episode.wake)
        try:
            episode.serve(program.ended, idle)
            closed = _close(episode, program, journal)
        finally:
            episode.end()
            program.stop()
    played = Trajectory(job=job, header=header or Header(attempt=1), events=episode.events)
    return with_end(played, closed, reward)


def _for_agent(episode: AgentEpisode, address: Address) -> AgentsEpisode:
    """A copy for the agent to change: all episodes of an environment share its tools."""
    return AgentsEpisode(
        base_url=address.base_url,
        api_key=address.key,
        model=MODEL,
        messages=deepcopy(episode.world.opening),
        tools=deepcopy(episode.world.tools),
        sandbox=episode.world.sandbox,
        take_step=episode.step,
    )


def _close(episode: AgentEpisode, program: Program, journal: AgentJournal) -> Closed:
    """Hand in the agent's answer and grade the episode."""
    answer = _answer(episode, program, journal)
    program.stop()  # what the policy left running does nothing to the grade
    if answer is not None and not episode.world.is_done:
        episode.world.act(Action(RESPOND, {"content": whole_characters(answer)}))
    closed = episode.close()
    info = dict(closed.info)
    if program.output:
        info[OUTPUT] = program.output
    if changes := list(changed_prompts(episode.events)):
        info[CHANGES] = f"it changes from request to request: {changes[-1]}"
        _warn_once(
            episode.job.agent,
            "its system prompt changes from request to request, so each begins a trace of its own; "
            f"info.{CHANGES} of an episode has the words",
        )
    return replace(closed, info=info)


def _answer(episode: AgentEpisode, program: Program, journal: AgentJournal) -> str | None:
    """The answer of an agent that has ended; None if it has none. Raises AgentFailure for an end
    that is not the policy's doing, and Drained for one at which its worker is stopping, too.
    """
    last = episode.last
    journal.check()
    try:
        answer = program.result()
    except AgentFailure as e:
        if isinstance(e, AgentKilled):
            time.sleep(SIGNAL_S)
            journal.check()
        if isinstance(e, AgentKilled) and last is not None and last.calls:
            # A policy that ends its own agent does not get out of a bad reward by it.
            return None if episode.world.has_acted else last.text
        if last is not None and last.cut:
            episode.refused = episode.refused or Stop.LENGTH
        if episode.refused is None and not episode.world.is_done:
            raise
        # it could not go on: a budget is spent or the environment has ended the episode
        return None
    if answer is None and last is not None and not episode.world.has_acted:
        answer = last.text
        if last.calls and program.output:
            answer = program.output.split("\n")[-1]
            _warn_once(
                episode.job.agent,
                "its last turn was a call, so the last line of its output is its answer",
            )
    return answer or None


@cache
def _warn_once(agent: str, what: str) -> None:
    log.warning("agent %s: %s", agent, what)
