"""The agent loop: one job played from its first prompt to its grade.

Pure: it knows protocols and values, so it runs the same in a test, a notebook, a trainer's process or a worker. The
invariant: what is sent to the engine is what was sent before, plus what was sampled, plus a bridge. Sampled ids are
never rendered, decoded or encoded again. It knows nothing of Redis, Celery, HTTP or any chat template.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace

from rollq.errors import EngineFailure, EnvironmentFailure, JobFailure
from rollq.job import History, Job, Json
from rollq.trajectory import Closed, Event, Finish, Header, Message, Observed, Prompt, Sampled, Stop, Trajectory
from rollq_worker.agents import Decision, agent_factory
from rollq_worker.boundary import boundary
from rollq_worker.invariants import Invariants
from rollq_worker.protocols import (
    RESPOND,
    Action,
    Engine,
    Environment,
    Grade,
    Journal,
    Observation,
    ReadTurn,
    Renderer,
    User,
)
from rollq_worker.replayed import Record

MAX_MALFORMED = 3
"""Unreadable turns in a row that end an episode."""
ABORT_PAUSE_S = 0.05
"""Before an interrupted turn goes on: an engine that aborts everything is about to pause."""


def play(
    job: Job,
    *,
    engine: Engine,
    renderer: Renderer,
    environment: Environment,
    user: User,
    journal: Journal,
    header: Header | None = None,
    recorded: Sequence[Event] = (),
) -> Trajectory:
    """Play `job` to its end and return the graded trajectory, whose last event is `Closed`.

    Every event but that last one has gone to `journal` by then: closing is one atomic step of whoever owns the job.
    `recorded` are the journal's events of an earlier attempt: they are played again without asking engine or user, and
    the episode goes on from there. Raises RolloutFailure when the episode could not be finished for a reason that is
    not the policy's (Diverged when a replay does not match its record), and whatever `journal.check` raises.
    """
    record = Record(recorded)
    episode = _Episode(job, engine, renderer, environment, journal, record)
    closed = episode.run(record.user(user))
    return Trajectory(job=job, header=header or Header(attempt=1), events=(*episode.events, closed))


class _Episode:
    def __init__(
        self,
        job: Job,
        engine: Engine,
        renderer: Renderer,
        environment: Environment,
        journal: Journal,
        record: Record,
    ) -> None:
        self.job = job
        self.agent = agent_factory(job.agent, job.agent_args)
        self.engine = engine
        self.renderer = renderer
        self.environment = environment
        self.journal = journal
        self.replayed = record
        self.messages: list[Message] = []
        self.schemas: list[Json] = []
        self.tools: set[str] = set()
        self.events: list[Event] = []
        self.ids = array("I")  # what the engine has seen of this trace, append-only
        self.stop_ids = frozenset(renderer.stop_ids)
        self.malformed = 0  # in a row
        self.invariants = Invariants(job, renderer.stop_ids, renderer.vocab_size)

    def run(self, user: User) -> Closed:
        self.open(user)
        for turn in range(self.job.budget.max_turns):
            stop = self.turn(turn)
            if stop is not None:
                return self.close(stop)
        return self.close(Stop.TURNS)

    def open(self, user: User) -> None:
        at = time.time()
        with boundary(EnvironmentFailure, "environment.reset"):
            first = self.environment.reset(user)
            policy, tools = self.environment.system_prompt, list(self.environment.tools)
        messages: list[Message] = [
            {"role": "system", "content": self.agent.system_prompt(policy)},
            {"role": "user", "content": first},
        ]
        with boundary(JobFailure, "rendering the first prompt"):
            ids = self.renderer.open(messages, tools)
        self.messages, self.schemas = list(messages), tools
        self.tools = {tool["function"]["name"] for tool in tools}
        self.ids.extend(ids)
        self.record(Prompt(ids=ids, messages=messages, tools=tools, at=at))

    def turn(self, turn: int) -> Stop | None:
        """Sample one turn, act on it, observe. Returns why the episode ends, or None when it goes on."""
        sampled, complete = self.sample(turn)
        if not sampled:
            return Stop.LENGTH
        at = time.time()
        with boundary(JobFailure, "reading the sampled turn"):
            read = self.renderer.read(sampled)
        if not complete:
            return self.observe(turn, read, (), [], at, stop=Stop.LENGTH)
        decision = self.agent.act(read, self.tools)
        speakers = {_speaker(action) for action in decision.actions}
        if not self.renderer.answers(sampled[-1]).issuperset(speakers):
            # The stop token is the header of who speaks next, and that is not who can answer this.
            decision = Decision(
                (), (*decision.errors, "the turn ends as if it were somebody else's turn to answer it.")
            )
        if not decision.actions:
            return self.refuse(turn, replace(read, errors=decision.errors), at)
        self.malformed = 0
        return self.act(turn, read, decision, at)

    def act(self, turn: int, read: ReadTurn, decision: Decision, at: float) -> Stop | None:
        """Carry the actions out, one after the other, until the environment closes the episode."""
        replies: list[Message] = []
        stop: Stop | None = None
        for n, action in enumerate(decision.actions):
            with boundary(EnvironmentFailure, f"environment.step({action.name})"):
                observation = self.environment.step(action)
                if not isinstance(observation.text, str):
                    raise TypeError(f"the observation is a {type(observation.text).__name__}, not a string")
            replies.append(_reply(turn, n, action, observation))
            if observation.done:
                stop = Stop.DONE
                break
        return self.observe(turn, read, decision.actions[: len(replies)], replies, at, stop=stop)

    def sample(self, turn: int) -> tuple[array[int], bool]:
        """The turn's sampled ids, and whether a stop token ended them. Continues a generation that was interrupted."""
        sampled = array("I")
        while True:
            known = bool(self.replayed)
            piece = self.replayed.sampled(turn) if known else self.generate(turn, len(sampled))
            if piece is None:
                return sampled, False
            if piece.ids:
                self.record(piece, known)
                self.ids.extend(piece.ids)
                sampled.extend(piece.ids)
            # The engine tests length before stop tokens, so a turn may be whole whatever `finish` says.
            if sampled and sampled[-1] in self.stop_ids:
                return sampled, True
            if piece.finish is not Finish.ABORT:
                # A job's own stop string ends a turn without a stop token; the bridge closes it.
                return sampled, piece.finish is Finish.STOP
            if not known:
                time.sleep(ABORT_PAUSE_S)

    def generate(self, turn: int, sampled: int) -> Sampled | None:
        """Have the engine go on with a turn of which `sampled` tokens are there; None when no more fit."""
        self.journal.check()
        room = min(self.job.budget.max_new_tokens - sampled, self.room(len(self.ids)))
        if room <= 0:
            return None
        self.invariants.sending(self.ids)
        at = time.time()
        with boundary(EngineFailure, "the engine"):
            got = self.engine.generate(
                self.ids, sampling=self.job.sampling, max_new_tokens=room, key=self.job.id, check=self.journal.check
            )
        return Sampled(
            turn=turn,
            ids=got.ids,
            logprobs=got.logprobs,
            versions=got.versions,
            finish=got.finish,
            text=got.text,
            cached_tokens=got.cached_tokens,
            at=at,
            seconds=time.time() - at,
        )

    def room(self, length: int) -> int:
        """How many tokens fit behind `length` tokens."""
        return min(self.job.budget.max_tokens - length, self.engine.room(length))

    def refuse(self, turn: int, read: ReadTurn, at: float) -> Stop | None:
        """Answer a turn that cannot be acted on: the policy sees what was wrong, up to a limit."""
        self.malformed += 1
        if self.malformed >= MAX_MALFORMED:
            return self.observe(turn, read, (), [], at, stop=Stop.MALFORMED)
        text = "Error: " + (" ".join(read.errors) or "the turn could not be read.")
        role = self.renderer.complaint_role(self.ids[-1] if self.ids[-1] in self.stop_ids else None)
        reply: Message = {"role": role, "content": text}
        if role == "tool":
            reply["tool_call_id"] = _call_id(turn, 0)
        return self.observe(turn, read, (), [reply], at, stop=None)

    def observe(
        self,
        turn: int,
        read: ReadTurn,
        actions: Sequence[Action],
        replies: list[Message],
        at: float,
        stop: Stop | None,
    ) -> Stop | None:
        """Record what the turn led to, and how the next one is prompted if there is to be one. Returns the stop."""
        message = _assistant(turn, read, actions)
        ids = array("I")
        rewritten: Prompt | None = None
        if stop is None and turn + 1 < self.job.budget.max_turns:
            if self.job.history is History.TEMPLATE:
                rewritten = self.rewrite(message, replies)
            if rewritten is not None:
                fits = self.room(len(rewritten.ids)) > 0
            else:
                ids = self.bridge(message, replies)
                fits = self.room(len(self.ids) + len(ids)) > 0
            if not fits:
                ids, rewritten, stop = array("I"), None, Stop.LENGTH
        self.ids.extend(ids)
        self.messages += [message, *replies]
        self.record(
            Observed(
                turn=turn,
                message=message,
                actions=[{"name": action.name, "arguments": dict(action.arguments)} for action in actions],
                replies=replies,
                ids=ids,
                errors=tuple(read.errors),
                extra_calls=max(0, len(read.calls) - max(1, len(actions))),
                done=stop is Stop.DONE,
                at=at,
                seconds=time.time() - at,
            )
        )
        if rewritten is not None:
            self.ids = array("I", rewritten.ids)
            self.record(rewritten)
        return stop

    def bridge(self, message: Message, replies: list[Message]) -> array[int]:
        ids = array("I")
        stop = self.ids[-1]
        if stop not in self.stop_ids:
            stop = self.renderer.stop_ids[0]
            ids.append(stop)
        with boundary(JobFailure, "rendering the bridge"):
            ids.extend(self.renderer.bridge(message, replies, stop))
        return ids

    def rewrite(self, message: Message, replies: list[Message]) -> Prompt | None:
        """The prompt of a new trace where the template now writes the conversation otherwise; None where it does not.

        What was sampled stays trainable in its own trace; in the new one it is context.
        """
        messages = [*self.messages, message, *replies]
        with boundary(JobFailure, "rendering the conversation anew"):
            if not self.renderer.rewrites([*self.messages, message], replies, self.schemas):
                return None
            ids = self.renderer.open(messages, self.schemas)
        return Prompt(ids=ids, messages=messages, tools=self.schemas, at=time.time())

    def close(self, stop: Stop) -> Closed:
        """Grade the episode. Only one that the environment closed is scored; the others get what tau-bench gives: 0."""
        self.replayed.finish()
        grade = Grade(0.0, {"unfinished": stop.value})
        if stop is Stop.DONE:
            with boundary(EnvironmentFailure, "environment.grade"):
                grade = self.environment.grade()
                reward = grade.reward
                if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
                    raise TypeError(f"the reward is {reward!r}, not a finite number")
        return Closed(stop=stop, reward=float(grade.reward), info=grade.info, at=time.time())

    def record(self, event: Event, known: bool = False) -> None:
        """Check an event and journal it; one that is played again is the recorded one instead."""
        self.invariants.follow(event)
        recorded = event if known else self.replayed.match(event)
        if recorded is None:
            self.journal.append(event)
        self.events.append(recorded or event)


def _assistant(turn: int, read: ReadTurn, actions: Sequence[Action]) -> Message:
    """The turn in OpenAI's form, with the calls that were carried out."""
    message: Message = {"role": "assistant", "content": read.content}
    if read.reasoning:
        message["reasoning_content"] = read.reasoning
    calls = [
        {
            "id": _call_id(turn, n),
            "type": "function",
            "function": {"name": action.name, "arguments": json.dumps(dict(action.arguments), ensure_ascii=False)},
        }
        for n, action in enumerate(actions)
        if action.name != RESPOND
    ]
    return {**message, "tool_calls": calls} if calls else message


def _reply(turn: int, n: int, action: Action, observation: Observation) -> Message:
    if _speaker(action) == "user":
        return {"role": "user", "content": observation.text}
    return {"role": "tool", "tool_call_id": _call_id(turn, n), "content": observation.text}


def _speaker(action: Action) -> str:
    """The role that answers an action."""
    return "user" if action.name == RESPOND else "tool"


def _call_id(turn: int, n: int) -> str:
    return f"call_{turn}_{n}" if n else f"call_{turn}"
