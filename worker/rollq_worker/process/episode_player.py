"""Plays the episode of a claimed job: environment, user, renderer and journal brought together for
the agent loop.

It knows attempts, and nothing of messages or of the consequences of a failure.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import rollq
from rollq.env import Domain, Environment, Task
from rollq.env.attempt import AttemptLabels, labelled
from rollq.errors import AgentFailure, EnvironmentFailure
from rollq.events import Event, Sampled
from rollq.ledger.replies import Claim
from rollq.settings import Settings
from rollq.trajectory import Header, Trajectory
from rollq_worker.agents.known_agents import is_program
from rollq_worker.context import context_factory
from rollq_worker.engine.pool import EnginePool
from rollq_worker.environments import domain
from rollq_worker.episode import loop
from rollq_worker.episode.messages import schemas_of
from rollq_worker.failures import Diverged, OtherWeights
from rollq_worker.process import memory
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.bound_engines import bound_engine
from rollq_worker.process.attempts.isolation import Isolation
from rollq_worker.process.attempts.models import asking_teacher, check_models
from rollq_worker.process.attempts.renderer_cache import RendererCache
from rollq_worker.process.attempts.time_limits import (
    OPEN_LIMIT_S,
    STEP_LIMIT_S,
    TimedEnvironment,
    timed_context,
    timed_reward,
)
from rollq_worker.rewards import check_judged, longest_s, reward_factory
from rollq_worker.teachers.scoring import score
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.users import longest_reply_s, user_factory

if TYPE_CHECKING:
    from rollq_worker.agents.endpoint import AgentEndpoint

log = logging.getLogger(__name__)

SAME_TO_RESUME = (
    "env_version",
    "task_hash",
    "template_hash",
    "tokenizer_hash",
    "history",
    "template_kwargs",
)
"""Fields of the header in which a journal and an attempt must agree, or the attempt does not resume
it.
"""


class EpisodePlayer:
    """Plays episodes, one per thread. The threads share everything that it holds."""

    def __init__(
        self,
        settings: Settings,
        engine: EnginePool,
        tokenizer: Tokenizer,
        name: str,
        models: Mapping[str, EnginePool] = MappingProxyType({}),
    ) -> None:
        """`name` is the worker's; `models` are engines of other models than the policy."""
        self.isolation = Isolation(settings.isolate)
        self._endpoints = settings.user_endpoints
        self._engine = engine
        self._models = models
        self._tokenizer = tokenizer
        self._name = name
        self._renderers = RendererCache(tokenizer)
        self._starting = threading.Lock()
        self._endpoint: AgentEndpoint | None = None
        """Endpoint of agent programs, once one is played."""
        self._loaded: set[str] = set()
        """Environments whose data is in this process."""

    def play(self, attempt: Attempt, claim: Claim) -> Trajectory:
        """The graded trajectory of a claimed job. Raises RolloutFailure, ForOtherWorkers,
        OtherWeights, and the errors of an attempt that must stop.
        """
        job = claim.job
        check_models(job, self._models)
        if job.weight_version and not job.adapter and not self._engine.serves(job.weight_version):
            raise OtherWeights(job.id, job.weight_version)
        opening = f"opening {job.env}"
        with attempt.time_limits.call(EnvironmentFailure, opening, OPEN_LIMIT_S):
            env = domain(job.env)
            self._freeze_once(job.env)
            task = env.task(job.split, job.task)
            check_judged(job, task)
            if not isinstance(task.hash, str):
                raise TypeError(
                    f"the hash of its task is a {type(task.hash).__name__}, not a string"
                )
            open_s = float(getattr(env, "longest_open_s", OPEN_LIMIT_S))
        labels = AttemptLabels(job.run, job.id, attempt.number)
        with (
            attempt.time_limits.call(EnvironmentFailure, opening, open_s),
            labelled(labels),
            ExitStack() as stack,
        ):
            if self.isolation.applies(job.env):
                environment: Environment = stack.enter_context(
                    self.isolation.open(job.env, job.split, job.task, job.env_args, attempt.check)
                )
            else:
                environment = env.open(job.split, job.task, job.env_args)
                close = getattr(environment, "close", None)
                if close:
                    stack.push(partial(self._close, attempt, close))
            opened = stack.pop_all()
        with opened:
            played = self._play_episode(environment, attempt, claim, env, task)
        return score(
            played,
            engine_of=lambda teacher: self._models.get(teacher.model, self._engine),
            renderer_of=partial(self._renderers.get, job),
            waiting=partial(asking_teacher, attempt, self._models),
        )

    def _close(
        self,
        attempt: Attempt,
        close: Callable[[], object],
        kind: object,
        error: BaseException | None,
        trace: object,
    ) -> None:
        """Closes the environment. An error that has ended the episode is the one that counts."""
        try:
            with attempt.time_limits.call(
                EnvironmentFailure, f"closing {attempt.job.env}", STEP_LIMIT_S
            ):
                close()
        except EnvironmentFailure as e:
            if error is None:
                raise
            log.warning("%s: %s", attempt.job.id, e)

    def _freeze_once(self, env: str) -> None:
        """Freeze the data of an environment after its first load."""
        if env not in self._loaded:
            self._loaded.add(env)
            memory.freeze_loaded_objects(collect=False)

    def _play_episode(
        self,
        environment: Environment,
        attempt: Attempt,
        claim: Claim,
        env: Domain,
        task: Task,
    ) -> Trajectory:
        job = claim.job
        with attempt.time_limits.call(
            EnvironmentFailure, f"{job.id}: environment.tools", STEP_LIMIT_S
        ):
            tools = schemas_of(environment)
        renderer = self._renderers.get(job, tools)
        asking: Any = {
            "endpoints": self._endpoints,
            "check": attempt.check,
            "away": attempt.time_limits.away,
        }
        user = user_factory(job.user, task, seed=job.seed, **asking)
        header = Header(
            attempt=attempt.number,
            worker=self._name,
            rollq=rollq.__version__,
            env_version=env.version,
            task_hash=task.hash,
            template_hash=self._tokenizer.template_hash,
            tokenizer_hash=self._tokenizer.hash,
            history=job.history.value,
            template_kwargs={**renderer.family.template_kwargs, **job.template_kwargs},
            at=time.time(),
        )
        recorded = self._open_journal(attempt, claim, header)
        timed = TimedEnvironment(environment, attempt.time_limits, longest_reply_s(user), tools)
        reward = reward_factory(job.reward, job.reward_args, seed=job.seed, **asking)
        reward = reward and timed_reward(reward, attempt.time_limits, longest_s(reward))
        context = context_factory(job, **asking)
        context = context and timed_context(context, attempt.time_limits)
        alone = partial(loop.play, renderer=renderer, context=context)
        play = self._program(attempt) if is_program(job.agent) else alone
        return play(
            job,
            engine=bound_engine(self._engine, attempt, claim, self._models),
            environment=timed,
            user=user,
            journal=attempt,
            header=header,
            recorded=recorded,
            reward=reward,
        )

    def _program(self, attempt: Attempt) -> Callable[..., Trajectory]:
        """Function that plays the episode of the job's agent program."""
        # Imported here, because a server of HTTP takes 10 MB, and other episodes do not need it.
        from rollq_worker.agents.endpoint import AgentEndpoint
        from rollq_worker.agents.known_agents import agent_starter
        from rollq_worker.agents.play import AGENT_LIMIT_S, play_with_agent

        with self._starting:
            self._endpoint = self._endpoint or AgentEndpoint()
        return partial(
            play_with_agent,
            start=agent_starter(attempt.job),
            endpoint=self._endpoint,
            renderer_of=partial(self._renderers.get, attempt.job),
            idle=partial(attempt.time_limits.call, AgentFailure, "the agent", AGENT_LIMIT_S),
        )

    def _open_journal(self, attempt: Attempt, claim: Claim, header: Header) -> list[Event]:
        """The events of an earlier attempt, to be replayed. If there are none, the header of a new
        journal is written.
        """
        if not claim.journal:
            attempt.open(header)
            return []
        written, events = attempt.resume()
        for name in SAME_TO_RESUME:
            if getattr(written, name) != getattr(header, name):
                raise Diverged(f"{claim.job.id}: {name} has changed since the episode began")
        for event in events:
            if isinstance(event, Sampled):
                self._engine.admit(event.ids)
        return events
