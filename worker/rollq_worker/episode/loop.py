"""The agent loop: one job played from its first prompt to its grade.

The invariant: each request sends what was sent before, plus what was sampled, plus a bridge.
Sampled ids are never rendered, decoded or encoded again. The loop knows protocols and values, and
nothing of Redis, Celery, HTTP or chat templates, so it runs the same in a test, a notebook, a
trainer's process or a worker.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import time
from array import array
from collections.abc import Sequence
from dataclasses import replace

from rollq.env import RESPOND, Environment, Observation, RewardFunction, User
from rollq.errors import EnvironmentFailure, JobFailure
from rollq.events import Closed, Event, Message, Observed, Prompt, Sampled, Stop
from rollq.images import content_with
from rollq.job import Job, Json
from rollq.trajectory import Header, Trajectory
from rollq_worker.episode.environment_checks import check_observation, check_text, close, with_end
from rollq_worker.episode.images import EpisodeImages
from rollq_worker.episode.messages import (
    ActionResult,
    CallIds,
    assistant_message,
    for_environment,
    replying_role,
    schemas_of,
)
from rollq_worker.episode.next_prompt import NextPrompt, NextPrompts, Trace
from rollq_worker.episode.resume import Recording
from rollq_worker.episode.sampler import ABORT_PAUSE_S, Sampler
from rollq_worker.episode.strategies import Decision, agent_factory
from rollq_worker.episode.token_checks import TokenChecks
from rollq_worker.failures import errors_become
from rollq_worker.protocols import Context, Engine, Journal, ReadTurn, Renderer, TurnRefused

MAX_MALFORMED = 3
"""Consecutive malformed turns before the episode ends."""


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
    reward: RewardFunction | None = None,
    context: Context | None = None,
) -> Trajectory:
    """Plays `job` to its end and returns the graded trajectory, whose last event is `Closed`.

    By then `journal` has every event but that last one, with which the caller ends the job in one
    atomic step. `recorded` are the events of an earlier attempt's journal. They are replayed
    without asking engine or user, and the episode goes on from there. `reward` has the last word on
    the grade; `context` shortens long conversations. Raises RolloutFailure when the episode cannot
    be finished for a reason that is not the policy's (Diverged when a replay differs from its
    journal), and whatever `journal.check` raises.
    """
    recording = Recording(recorded)
    episode = _Episode(job, engine, renderer, environment, journal, recording, context)
    closed = episode.run(recording.user(user))
    played = Trajectory(
        job=job,
        header=header or Header(attempt=1),
        events=episode.events,
        extras=episode.images.extras(),
    )
    return with_end(played, closed, reward)


class _Episode:
    def __init__(
        self,
        job: Job,
        engine: Engine,
        renderer: Renderer,
        environment: Environment,
        journal: Journal,
        recording: Recording,
        context: Context | None,
    ) -> None:
        self.job = job
        self.agent = agent_factory(job.agent, job.agent_args)
        self.sampler = Sampler(job, engine, journal.check, renderer.stop_ids)
        self.renderer = renderer
        self.environment = environment
        self.journal = journal
        self.recording = recording
        self.next_prompts = NextPrompts(job, engine, renderer, recording, context)
        self.messages: list[Message] = []
        """Messages of the present trace."""
        self.call_ids = CallIds(words=RESPOND)
        self.schemas: list[Json] = []
        """The tools that the chat template shows."""
        self.tools: set[str] = set()
        self.events: list[Event] = []
        self.ids = array("I")  # the present trace as the engine has seen it, append-only
        self.sampled = array("I")  # the present turn
        self.malformed = 0  # turns in a row
        self.checks = TokenChecks(job, renderer)
        self.images = EpisodeImages(renderer)

    def run(self, user: User) -> Closed:
        self.open(user)
        for turn in range(self.job.budget.max_turns):
            stop = self.turn(turn)
            if stop is not None:
                return self.close(stop)
        return self.close(Stop.TURNS)

    def open(self, user: User) -> None:
        at = time.time()
        with errors_become(EnvironmentFailure, "environment.tools"):
            schemas = schemas_of(self.environment)
            self.schemas = [] if self.agent.text_actions else schemas
            self.tools = {tool["function"]["name"] for tool in schemas}
        with errors_become(EnvironmentFailure, "environment.reset"):
            opening = self.environment.reset(user)
            if not isinstance(opening, Observation):
                opening = Observation(opening)
            first = opening.text
            user_messages = self.recording.user_messages
            if user_messages not in ([], [first]):
                # The journal has this message only, so a replay would not know the user's.
                raise ValueError(
                    f"it returned {first!r:.100} where the user said {user_messages!r:.100}"
                )
            system_prompt = self.environment.system_prompt
            check_text("message", first)
            check_text("system prompt", system_prompt)
            shown = self.images.add(opening.images)
        messages: list[Message] = []
        full_prompt = self.agent.system_prompt(system_prompt, schemas)
        if full_prompt:
            messages.append({"role": "system", "content": full_prompt})
        messages.append({"role": "user", "content": content_with(first, shown)})
        with errors_become(JobFailure, "rendering the first prompt"):
            ids = self.renderer.open(messages, self.schemas)
        prompt = Prompt(ids=ids, messages=messages, tools=self.schemas, at=at)
        self.next_prompts.begin(prompt)
        self.messages += messages
        self.ids.extend(ids)
        self.record(prompt)

    def turn(self, turn: int) -> Stop | None:
        """Samples one turn, acts on it, observes. Returns why the episode ends, or None when it
        goes on.
        """
        self.sampled, complete = self.sample(turn)
        sampled = self.sampled
        if not (sampled or turn or self.recording):
            # Nothing was sampled, so there is nothing that a reward could grade.
            raise JobFailure(
                f"the first prompt of {len(self.ids)} tokens leaves no room in max_tokens or the "
                "context"
            )
        if not sampled:
            return Stop.LENGTH
        at = time.time()
        with errors_become(JobFailure, "reading the sampled turn"):
            read = self.renderer.read(sampled)
        if not complete:
            return self.observe(turn, read, [], [], at, stop=Stop.LENGTH)
        if self.next_prompts.summing_up:
            return self.sum_up(turn, read, at)
        decision = self.agent.act(read, self.tools)
        text_actions = self.agent.text_actions
        roles = {replying_role(action, text_actions) for action in decision.actions}
        if not self.renderer.replying_roles(sampled[-1]).issuperset(roles):
            # The stop token is also the header of the next message, and the reply has another role.
            error = "the turn ends as if it were somebody else's turn to answer it."
            decision = Decision((), (*decision.errors, error))
        if not decision.actions:
            return self.refuse(turn, replace(read, errors=decision.errors), at)
        self.malformed = 0
        return self.act(turn, read, decision, at)

    def sample(self, turn: int) -> tuple[array[int], bool]:
        """Samples the turn, and goes on when its generation is interrupted. Returns the ids, and
        True if the turn is complete.
        """
        sampled = array("I")
        while True:
            replayed = bool(self.recording)
            if replayed:
                piece = self.recording.sampled(turn)
            else:
                piece = self.generate(turn, len(sampled))
            if piece is None:
                return sampled, False
            if self.sampler.is_kept(piece):
                self.record(piece, replayed)
                self.ids.extend(piece.ids)
                sampled.extend(piece.ids)
            if self.sampler.is_over(piece):
                return sampled, self.sampler.is_complete(piece)
            if not replayed:
                time.sleep(ABORT_PAUSE_S)

    def generate(self, turn: int, sampled: int) -> Sampled | None:
        self.checks.check_request(self.ids)
        if self.images.misplaced(self.ids):
            return None
        return self.sampler.generate(
            self.ids, turn, sampled, self.checks.read, self.images.of_prompt()
        )

    def act(
        self,
        turn: int,
        read: ReadTurn,
        decision: Decision,
        at: float,
    ) -> Stop | None:
        """Carries out the actions, one after the other, until the environment ends the episode."""
        results: list[ActionResult] = []
        stop: Stop | None = None
        text_actions = self.agent.text_actions
        ids = [""] * len(decision.actions)
        if not text_actions:
            ids = self.call_ids.of(self.renderer, read, decision.actions)
        for action, id in zip(decision.actions, ids, strict=True):
            before = len(self.recording.user_messages)
            with errors_become(EnvironmentFailure, f"environment.step({action.name})"):
                observation = self.environment.step(for_environment(action))
                check_observation(observation)
                shown = self.images.add(observation.images)
                done = bool(observation.done)
            user_messages = self.recording.user_messages[before:]
            results.append(
                ActionResult(action, id, observation.text, user_messages, observation.reward, shown)
            )
            if done:
                stop = Stop.DONE
                break
        replies = [result.reply for result in results]
        return self.observe(turn, read, results, replies, at, stop=stop)

    def sum_up(self, turn: int, read: ReadTurn, at: float) -> Stop | None:
        """The turn is the summary that the policy was asked for. It acts on nothing."""
        if not read.content.strip():
            error = "write the summary as plain text, without a call."
            return self.refuse(turn, replace(read, errors=(error,)), at)
        self.malformed = 0
        self.next_prompts.summing_up = False
        return self.observe(turn, read, [], [], at, stop=None)

    def refuse(self, turn: int, read: ReadTurn, at: float) -> Stop | None:
        """Tells the policy the errors of a turn that cannot be acted on, up to MAX_MALFORMED times
        in a row.
        """
        self.malformed += 1
        if self.malformed >= MAX_MALFORMED:
            return self.observe(turn, read, [], [], at, stop=Stop.MALFORMED)
        stop = self.ids[-1] if self.renderer.is_end(self.ids[-1]) else None
        role = self.renderer.complaint_role(stop)
        user_may_reply = stop is None or "user" in self.renderer.replying_roles(stop)
        if self.agent.text_actions and user_may_reply:
            role = "user"
        errors = list(dict.fromkeys(read.errors))[:5]  # a turn may hold hundreds of broken calls
        text = "Error: " + (" ".join(errors) or "the turn could not be read.")
        reply: Message = {"role": role, "content": text}
        if role == "tool":
            reply["tool_call_id"] = self.call_ids.next(self.renderer, "", "tool")
        return self.observe(turn, read, [], [reply], at, stop=None)

    def observe(
        self,
        turn: int,
        read: ReadTurn,
        results: Sequence[ActionResult],
        replies: list[Message],
        at: float,
        stop: Stop | None,
    ) -> Stop | None:
        """Records the results of the turn, and the prompt of the next turn, if there is one.
        Returns the stop.
        """
        seconds = time.time() - at
        calls = [(result.id, result.action) for result in results if result.id]
        message = assistant_message(read, calls)
        self.messages.append(message)
        following = NextPrompt(replies)
        left = self.job.budget.max_turns - turn - 1
        if stop is None and left:
            trace = Trace(self.ids, self.messages, self.sampled)
            try:
                following = self.next_prompts.behind(trace, replies, left)
            except TurnRefused as e:
                # A server could not show these words to the policy either, so they end the episode
                # without reward.
                stop = Stop.MALFORMED
                read = replace(read, errors=(*read.errors, str(e)))
        stop = stop or following.stop
        self.ids.extend(following.bridge)
        self.messages += following.replies
        self.record(
            Observed(
                turn=turn,
                message=message,
                actions=[result.recorded for result in results],
                replies=following.replies,
                ids=following.bridge,
                errors=tuple(read.errors),
                extra_calls=max(0, len(read.calls) - max(1, len(results))),
                done=stop is Stop.DONE,
                at=at,
                seconds=seconds,
            )
        )
        if following.opened is not None:
            self.ids = array("I", following.opened.ids)
            self.messages = [*following.opened.messages]
            self.images.show(following.opened.messages)
            self.record(following.opened)
        return stop

    def close(self, stop: Stop) -> Closed:
        self.recording.check_finished()
        unfinished = "" if stop is Stop.DONE else stop.value
        return close(self.environment, stop, unfinished=unfinished)

    def record(self, event: Event, replayed: bool = False) -> None:
        """Checks an event and journals it, unless the journal has it already."""
        self.checks.check_event(event)
        recorded = event if replayed else self.recording.match(event)
        if recorded is None:
            self.journal.append(event)
        self.events.append(recorded or event)
