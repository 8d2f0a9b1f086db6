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

from rollq.errors import EnvironmentFailure, JobFailure
from rollq.job import History, Job, Json
from rollq.trajectory import Closed, Event, Finish, Header, Message, Observed, Prompt, Sampled, Stop, Trajectory
from rollq_worker.episode.messages import Answered, Dialogue, assistant, speaker
from rollq_worker.episode.resume import Record
from rollq_worker.episode.sampler import ABORT_PAUSE_S, Sampler
from rollq_worker.episode.strategies import Decision, agent_factory
from rollq_worker.episode.token_checks import Invariants
from rollq_worker.episode.tool_schemas import schemas_of
from rollq_worker.failures import boundary
from rollq_worker.protocols import Engine, Environment, Grade, Journal, ReadTurn, Renderer, User

MAX_MALFORMED = 3
"""Unreadable turns in a row that end an episode."""
TOLD = 5
"""Errors of one turn that the policy is told, each once: a turn may hold hundreds of broken calls."""


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
        self.sampler = Sampler(job, engine, journal, renderer.stop_ids)
        self.renderer = renderer
        self.environment = environment
        self.journal = journal
        self.replayed = record
        self.dialogue = Dialogue(renderer.call_id)
        self.schemas: list[Json] = []
        self.tools: set[str] = set()
        self.events: list[Event] = []
        self.ids = array("I")  # what the engine has seen of this trace, append-only
        self.malformed = 0  # in a row
        self.invariants = Invariants(job, renderer)

    def run(self, user: User) -> Closed:
        self.open(user)
        for turn in range(self.job.budget.max_turns):
            stop = self.turn(turn)
            if stop is not None:
                return self.close(stop)
        return self.close(Stop.TURNS)

    def open(self, user: User) -> None:
        at = time.time()
        with boundary(EnvironmentFailure, "environment.tools"):
            self.schemas = schemas_of(self.environment)
            self.tools = {tool["function"]["name"] for tool in self.schemas}
        with boundary(EnvironmentFailure, "environment.reset"):
            first = self.environment.reset(user)
            if self.replayed.said not in ([], [first]):
                # A replay could not give it what it asked for.
                raise ValueError(f"it returned {first!r:.100} where the user said {self.replayed.said!r:.100}")
            policy = self.environment.system_prompt
            for what, text in (("message", first), ("system prompt", policy)):
                if not isinstance(text, str):
                    raise TypeError(f"the {what} is a {type(text).__name__}, not a string")
        messages: list[Message] = [
            {"role": "system", "content": self.agent.system_prompt(policy)},
            {"role": "user", "content": first},
        ]
        with boundary(JobFailure, "rendering the first prompt"):
            ids = self.renderer.open(messages, self.schemas)
        self.dialogue.messages += messages
        self.ids.extend(ids)
        self.record(Prompt(ids=ids, messages=messages, tools=self.schemas, at=at))

    def turn(self, turn: int) -> Stop | None:
        """Sample one turn, act on it, observe. Returns why the episode ends, or None when it goes on."""
        sampled, whole = self.sample(turn)
        if not (sampled or turn or self.replayed):
            # Graded, it would be a reward for what the policy never did.
            raise JobFailure(f"the first prompt of {len(self.ids)} tokens leaves no room in max_tokens or the context")
        if not sampled:
            return Stop.LENGTH
        at = time.time()
        with boundary(JobFailure, "reading the sampled turn"):
            read = self.renderer.read(sampled)
        if not whole:
            return self.observe(turn, read, [], [], at, stop=Stop.LENGTH)
        decision = self.agent.act(read, self.tools)
        speakers = {speaker(action) for action in decision.actions}
        if not self.renderer.answers(sampled[-1]).issuperset(speakers):
            # The stop token is the header of who speaks next, and that is not who can answer this.
            decision = Decision(
                (), (*decision.errors, "the turn ends as if it were somebody else's turn to answer it.")
            )
        if not decision.actions:
            return self.refuse(turn, replace(read, errors=decision.errors), at)
        self.malformed = 0
        return self.act(turn, read, decision, at)

    def sample(self, turn: int) -> tuple[array[int], bool]:
        """The turn's sampled ids, and whether it came to its end. Goes on with a generation that was interrupted."""
        sampled = array("I")
        while True:
            known = bool(self.replayed)
            piece = self.replayed.sampled(turn) if known else self.generate(turn, len(sampled))
            if piece is None:
                return sampled, False
            if self.sampler.keeps(piece):
                self.record(piece, known)
                self.ids.extend(piece.ids)
                sampled.extend(piece.ids)
            whole = self.sampler.whole(piece)
            if whole or piece.finish is not Finish.ABORT:
                return sampled, whole
            if not known:
                time.sleep(ABORT_PAUSE_S)

    def generate(self, turn: int, sampled: int) -> Sampled | None:
        self.invariants.sending(self.ids)
        return self.sampler.generate(self.ids, turn, sampled)

    def act(self, turn: int, read: ReadTurn, decision: Decision, at: float) -> Stop | None:
        """Carry the actions out, one after the other, until the environment closes the episode."""
        answered: list[Answered] = []
        stop: Stop | None = None
        for action, id in zip(decision.actions, self.dialogue.call_ids(read, decision.actions), strict=True):
            before = len(self.replayed.said)
            with boundary(EnvironmentFailure, f"environment.step({action.name})"):
                observation = self.environment.step(action)
                if not isinstance(observation.text, str):
                    raise TypeError(f"the observation is a {type(observation.text).__name__}, not a string")
            answered.append(Answered(action, id, observation.text, self.replayed.said[before:]))
            if observation.done:
                stop = Stop.DONE
                break
        return self.observe(turn, read, answered, [done.reply for done in answered], at, stop=stop)

    def refuse(self, turn: int, read: ReadTurn, at: float) -> Stop | None:
        """Answer a turn that cannot be acted on: the policy sees what was wrong, up to a limit."""
        self.malformed += 1
        if self.malformed >= MAX_MALFORMED:
            return self.observe(turn, read, [], [], at, stop=Stop.MALFORMED)
        role = self.renderer.complaint_role(self.ids[-1] if self.renderer.is_end(self.ids[-1]) else None)
        errors = list(dict.fromkeys(read.errors))[:TOLD]
        text = "Error: " + (" ".join(errors) or "the turn could not be read.")
        return self.observe(turn, read, [], [self.dialogue.complaint(role, text)], at, stop=None)

    def observe(
        self,
        turn: int,
        read: ReadTurn,
        answered: Sequence[Answered],
        replies: list[Message],
        at: float,
        stop: Stop | None,
    ) -> Stop | None:
        """Record what the turn led to, and how the next one is prompted if there is to be one. Returns the stop."""
        message = assistant(read, answered)
        ids = array("I")
        rewritten: Prompt | None = None
        if stop is None and turn + 1 < self.job.budget.max_turns:
            rewritten = self.rewrite(message, replies)
            if rewritten is None:
                ids = self.bridge(message, replies)
            if not self.fits(ids, rewritten):
                ids, rewritten, stop = array("I"), None, Stop.LENGTH
        self.ids.extend(ids)
        self.dialogue.messages += [message, *replies]
        self.record(
            Observed(
                turn=turn,
                message=message,
                actions=[done.recorded for done in answered],
                replies=replies,
                ids=ids,
                errors=tuple(read.errors),
                extra_calls=max(0, len(read.calls) - max(1, len(answered))),
                done=stop is Stop.DONE,
                at=at,
                seconds=time.time() - at,
            )
        )
        if rewritten is not None:
            self.ids = array("I", rewritten.ids)
            self.record(rewritten)
        return stop

    def fits(self, bridge: array[int], rewritten: Prompt | None) -> bool:
        """Whether there is room for another turn."""
        went_on = self.replayed.went_on(rewritten is not None)
        if went_on is not None:
            return went_on
        return self.sampler.room(len(rewritten.ids if rewritten else self.ids) + len(bridge)) > 0

    def bridge(self, message: Message, replies: list[Message]) -> array[int]:
        """What comes between the turn and the next one; it closes a turn that was cut."""
        ids = array("I")
        stop = self.ids[-1]
        with boundary(JobFailure, "rendering the bridge"):
            if not self.renderer.is_end(stop):
                stop = self.renderer.close(message, replies)
                ids.append(stop)
            ids.extend(self.renderer.bridge(message, replies, stop))
        return ids

    def rewrite(self, message: Message, replies: list[Message]) -> Prompt | None:
        """The prompt of a new trace where the job wants history as the template writes it, and that is otherwise now.

        What was sampled stays trainable in its own trace; in the new one it is context.
        """
        if self.job.history is not History.TEMPLATE:
            return None
        said = [*self.dialogue.messages, message]
        with boundary(JobFailure, "rendering the conversation anew"):
            if not self.renderer.rewrites(said, replies, self.schemas):
                return None
            ids = self.renderer.open([*said, *replies], self.schemas)
        return Prompt(ids=ids, messages=[*said, *replies], tools=self.schemas, at=time.time())

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
                json.dumps(dict(grade.info), allow_nan=False)  # as the wire and an exported file take it
        return Closed(stop=stop, reward=float(grade.reward), info=grade.info, at=time.time())

    def record(self, event: Event, known: bool = False) -> None:
        """Check an event and journal it; one that is played again is the recorded one instead."""
        self.invariants.follow(event)
        recorded = event if known else self.replayed.match(event)
        if recorded is None:
            self.journal.append(event)
        self.events.append(recorded or event)
