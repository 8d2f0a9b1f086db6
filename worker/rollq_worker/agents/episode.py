"""One episode of an agent program: it asks for turns as the client of a model does, and may act in
an environment.

The invariant: the program is given a turn, or the result of a step, once that is in the journal.
Requests come from any thread, also several at once; steps are made by the attempt's own thread, one
after the other. It knows protocols and values, and nothing of HTTP, Redis or how a program is
started.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from queue import Empty, SimpleQueue

from rollq.env import Action, Environment, Observation, User
from rollq.errors import AgentFailure, ContractError, EngineFailure, JobFailure
from rollq.events import Acted, Closed, Event, Observed, Prompt, Sampled, Stop
from rollq.job import Job, Json
from rollq_worker.agents.growth import Growth, Spent
from rollq_worker.agents.other_models import OtherModels
from rollq_worker.agents.recorded import AgentJournal, Answers, replayed
from rollq_worker.agents.traces import RendererOf, Trace, TraceTree, Turn
from rollq_worker.agents.turn_request import RequestRefused, TurnRequest, with_options
from rollq_worker.agents.unreadable_calls import read_arguments
from rollq_worker.agents.world import World
from rollq_worker.episode.sampler import ABORT_PAUSE_S, Sampler, room
from rollq_worker.failures import Drained, errors_become
from rollq_worker.protocols import Engine
from rollq_worker.text.whole_text import whole_json
from rollq_worker.toolcalls.call_object import NotACall

DENSEST_TOKEN = 16
"""Characters of a text's average token, white space aside, that no language comes near."""


class AgentEpisode:
    """The turns and steps of an agent program in one attempt."""

    def __init__(
        self,
        job: Job,
        *,
        engine: Engine,
        renderer_of: RendererOf,
        environment: Environment,
        user: User,
        journal: AgentJournal,
        recorded: Sequence[Event] = (),
    ) -> None:
        """`recorded`: the events of an earlier attempt's journal."""
        self.job = job
        self.events: list[Event] = []
        self.refused: Stop | None = None
        """The budget for which the agent's last request was refused."""
        self.last: Turn | None = None
        """The turn that the agent was given last."""
        self._engine = engine
        self._journal = journal
        self._tree = TraceTree(job, renderer_of)
        self._others = OtherModels(engine, recorded, self._record_reply)
        self._other_tree = TraceTree(replace(job, routed_experts={}), renderer_of)
        """The conversations of models that are not trained. The journal does not have them."""
        self._other_turns = 0
        self._answers = Answers()
        steps = [event for event in recorded if isinstance(event, Acted)]
        self.world = World(environment, user, steps, self._record_now)
        turns = replayed(recorded, job, self._tree, self._sampler)
        for turn in turns.values():
            self._answers.add(turn, recorded=True)
        self._turns = len(turns)
        """Turns that were begun."""
        self._number = max(turns, default=-1) + 1
        """The number of the next turn. A turn that a kill cut off left a gap."""
        self._requests_under_way = 0
        """Number of requests under way."""
        self._requests_so_far = 0
        """Number of requests so far."""
        self._began_too_long = False
        """True if there was no room for the first turn."""
        self._growth = Growth()
        self._failure: BaseException | None = None
        self._over = False
        self._lock = threading.RLock()
        self._company = threading.Condition(self._lock)
        """A request has come, or the episode is over."""
        self._work: SimpleQueue[tuple[Action, Future[Observation]] | None] = SimpleQueue()
        for event in recorded:
            self._know(event)

    # What the agent asks for, in any thread.

    def complete(self, request: TurnRequest) -> Turn:
        """The finished turn that answers the request. Raises RequestRefused."""
        with self._one_more():
            try:
                tree = self._tree_of(request)
                request = tree.recognised(request)
                if tree is not self._tree:
                    return self._ask_other(request)
                return self._complete(request)
            except RequestRefused:
                raise
            except BaseException as e:  # the attempt's thread raises it
                with self._lock:
                    self._failure = self._failure or e
                raise self._refusal() from e

    def count(self, request: TurnRequest) -> int:
        """The number of tokens that the request's turn would begin behind. Raises
        RequestRefused.
        """
        tree = self._tree_of(request)
        request = tree.recognised(request)
        with self._lock:
            self._check_going_on()
            self._check_size(request)
            place = tree.prompt_for(request)
        if isinstance(place, tuple):
            turn, event = place
            return len(turn.trace.ids) + len(event.ids)
        return len(place.ids)

    def not_delivered(self, turn: Turn) -> None:
        """The agent has hung up before it was given this turn. It is there for the same request,
        sent again.
        """
        with self._lock:
            if not self.job.is_frozen(turn.trace.model):
                self._answers.add(turn, recorded=False)

    def step(self, name: str, arguments: Mapping[str, Json] | str) -> Observation:
        """Carries out one action in the environment. Raises RequestRefused."""
        try:
            read = dict(read_arguments(name, arguments))
            plain = whole_json(json.loads(json.dumps(read, allow_nan=False)))
        except NotACall as e:
            return Observation(f"Error: {e}")
        except (TypeError, ValueError, RecursionError) as e:
            raise RequestRefused(
                f"the arguments of {name:.80} are not JSON: {e}", param="arguments"
            ) from e
        action = Action(name, plain)
        if refusal := self.world.refusal_of(action):
            return Observation(refusal)
        made: Future[Observation] = Future()
        with self._lock:
            self._check_going_on()
            self._work.put((action, made))
        return made.result()

    def wake(self) -> None:
        """Something has changed for the attempt's thread."""
        self._work.put(None)

    def _complete(self, request: TurnRequest) -> Turn:
        with self._lock:
            self._check_going_on()
            turn = self._recorded(request)
            if turn is not None and turn.message is not None:
                return self._delivered(turn)
            turn = turn or self._begin(request)
        self._sample(turn, request, self._tree)
        with self._lock:
            self._journal.write()
            return self._delivered(turn)

    def _tree_of(self, request: TurnRequest) -> TraceTree:
        return self._other_tree if self.job.is_frozen(request.model) else self._tree

    def _ask_other(self, request: TurnRequest) -> Turn:
        """The turn of a model that is not trained."""
        with self._lock:
            self._check_going_on()
            self._check_growth()
            trace, job = self._trace_for(request, self._other_tree)
            self._other_turns += 1  # numbers below those of trained turns
            turn = self._other_tree.begin(trace, -self._other_turns, job)
        self._sample(turn, request, self._other_tree)
        return turn

    def _delivered(self, turn: Turn) -> Turn:
        self.refused = None
        self.last = turn
        return turn

    def _recorded(self, request: TurnRequest) -> Turn | None:
        """The turn that answers the request, if the journal has one. Raises Diverged, and
        RequestRefused for a request that was refused before, because no journal records refusals.
        """
        turn = self._answers.take(request)
        if turn is not None or self._requests_under_way != 1:
            return turn
        divergence = self._answers.divergence(request)
        if divergence:
            self._place(request, self._tree)
            # Of several requests at once, this one may not have been answered when the journal
            # ended. Then another one follows within two seconds.
            before = self._requests_so_far

            def another_came() -> bool:
                return self._requests_so_far > before or self._over

            if not self._company.wait_for(another_came, 2.0):
                raise divergence
            self._check_going_on()
        return turn

    def _sampler(self, turn: Turn) -> Sampler:
        model = turn.trace.model
        engine = self._others if self.job.is_frozen(model) else self._engine
        return Sampler(turn.job, engine, self._check, turn.trace.renderer.stop_ids, model)

    def _check(self) -> None:
        """Raises when nothing more may be sampled, also for another request than the one that has
        ended the episode.
        """
        self._check_going_on()
        self._journal.check()

    def _begin(self, request: TurnRequest) -> Turn:
        """Opens the turn where the request goes on. Raises RequestRefused when there is no budget
        for it.
        """
        if self._turns >= self.job.budget.max_turns:
            self.refused = Stop.TURNS
            raise RequestRefused(
                f"the job's {self.job.budget.max_turns} turns are played", code="turns_spent"
            )
        self._check_growth()
        trace, job = self._trace_for(request, self._tree)
        self._turns += 1
        self._number += 1
        return self._tree.begin(trace, self._number - 1, job)

    def _trace_for(self, request: TurnRequest, tree: TraceTree) -> tuple[Trace, Job]:
        """The trace in which the request's turn begins, and the job with the options of the
        request.
        """
        job, place = self._place(request, tree)
        if isinstance(place, Trace):
            return place, job
        if isinstance(place, Prompt):
            event: Event = place
            trace = tree.open(place)
        else:
            _, event = place
            trace = tree.answer(event)
        self._record_in(tree, event)
        return trace, job

    def _place(
        self, request: TurnRequest, tree: TraceTree
    ) -> tuple[Job, Trace | Prompt | tuple[Turn, Observed]]:
        """The job with the options of the request, and its place in the traces. Raises
        RequestRefused.
        """
        try:
            job = with_options(tree.job, request.options)
        except ContractError as e:
            raise RequestRefused(str(e)) from e
        self._check_size(request)
        place = tree.prompt_for(request)
        if isinstance(place, tuple):
            turn, event = place
            ids = turn.trace.ids + event.ids
        else:
            ids = place.ids
        if room(self.job, self._engine, len(ids)) <= 0:
            raise self._no_room()
        return job, place

    def _check_size(self, request: TurnRequest) -> None:
        """Refuses a conversation that is far too long before its text becomes tokens, which takes a
        hundred times its memory.
        """
        most = DENSEST_TOKEN * room(self.job, self._engine, 0)
        texts = request.texts
        if sum(map(len, texts)) > most and sum(len("".join(text.split())) for text in texts) > most:
            raise self._no_room()

    def _sample(self, turn: Turn, request: TurnRequest, tree: TraceTree) -> None:
        """Samples the turn to its end, and goes on when its generation is interrupted. Raises
        RequestRefused when there is no room for it.
        """
        while self._sample_piece(turn, request, tree):
            time.sleep(ABORT_PAUSE_S)
        with self._lock:
            if not turn.pieces:
                raise self._no_room()
            if turn.message is None:  # interrupted, and then there was no room
                tree.end(turn, cut=True)

    def _sample_piece(self, turn: Turn, request: TurnRequest, tree: TraceTree) -> bool:
        """True if the turn goes on behind the piece that was sampled."""
        trace = turn.trace
        sampler = self._sampler(turn)
        trace.checks.check_request(trace.ids)
        piece = sampler.generate(
            trace.ids, turn.number, len(trace.ids) - turn.begin, trace.checks.read
        )
        if piece is None:
            return False
        over = sampler.is_over(piece)
        if sampler.is_kept(piece):
            piece = replace(piece, trace=trace.number, asked=request.options)
            with self._lock:
                if self._over:
                    raise self._refusal()
                tree.add(turn, piece)
                self._record_in(tree, piece)
                if over:  # here, because calls are numbered in the journal's order
                    tree.end(turn, cut=not sampler.is_complete(piece))
        return not over

    def _check_growth(self) -> None:
        try:
            self._growth.check()
        except Spent as e:
            self.refused = e.stop
            raise

    def _no_room(self) -> RequestRefused:
        self.refused = Stop.LENGTH
        self._began_too_long = self._began_too_long or not self._has_sampled
        return RequestRefused(
            "the conversation leaves no room for a turn in the job's max_tokens or in the model's "
            "context",
            param="messages",
            code="context_length_exceeded",
        )

    @property
    def _has_sampled(self) -> bool:
        return any(isinstance(event, Sampled) for event in self.events)

    def _check_going_on(self) -> None:
        if self._over or self._failure is not None:
            raise self._refusal()

    def _refusal(self) -> RequestRefused:
        return RequestRefused("the episode is over", code="episode_over", status=503)

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        with self._lock:
            self._requests_under_way += 1
            self._requests_so_far += 1
            self._company.notify_all()
        self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._requests_under_way -= 1
            self.wake()

    # What the attempt's own thread does.

    def serve(
        self, ended: Callable[[], bool], idle: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Carries out the agent's steps until it has `ended`. Raises the error that made the
        episode fail.

        The time for which the agent is at work by itself is spent in a block of `idle`.
        """
        while True:
            busy = self._requests_under_way > 0
            try:
                with nullcontext() if busy else idle():
                    work = self._next_work(ended, busy)
                if self._failure is not None:
                    self._work.put(work)  # `end` refuses it
                    raise self._failure
            except Drained:
                self._await_requests()
                raise
            if work is not None:
                self._carry_out(*work)
            elif ended() and not self._requests_under_way:
                return

    def _next_work(
        self, ended: Callable[[], bool], busy: bool
    ) -> tuple[Action, Future[Observation]] | None:
        """The next step; None when the agent begins or ends a request, or has ended."""
        while True:
            try:
                work = self._work.get(timeout=0.2)
            except Empty:
                waits_for = errors_become(AgentFailure, "the agent")
                if busy:
                    waits_for = errors_become(EngineFailure, "the engine")
                with waits_for:
                    self._journal.check()
                work = None
            is_busy = self._requests_under_way > 0
            if work is not None or self._failure is not None or is_busy is not busy:
                return work
            if ended():
                return None

    def _await_requests(self) -> None:
        """Waits until the requests under way have ended. A stopping worker aborts them, and records
        their tokens before the job goes back.
        """
        until = time.monotonic() + 3.0
        while self._requests_under_way and time.monotonic() < until:
            time.sleep(0.01)

    def _carry_out(self, action: Action, made: Future[Observation]) -> None:
        if self.world.is_done:
            made.set_exception(
                RequestRefused(
                    "the environment has ended the episode", code="episode_over", status=409
                )
            )
            return
        try:
            if not self.world.is_repeating:
                self._check_growth()
            made.set_result(self.world.act(action))
        except Spent as e:
            made.set_exception(e)
        except BaseException:
            made.set_exception(self._refusal())
            raise

    def close(self) -> Closed:
        """Grades the episode. One that the environment did not end gets 0. Raises AgentFailure when
        the agent had no turn, and JobFailure when there was no room for the first one.
        """
        with self._lock:
            self._answers.check_finished()
            self.world.check_finished()
            self._over = True
            if not self._has_sampled:
                if self._began_too_long:
                    raise JobFailure(
                        "the agent's first prompt leaves no room in max_tokens or in the model's "
                        "context"
                    )
                raise AgentFailure("the agent ended without a turn")
            for leaf in self._tree.leaves():
                self._tree.answer(leaf)
                self._record(leaf)
        if self.world.is_done or self.refused is None:
            stop = Stop.DONE
        else:
            stop = self.refused
        unfinished = "the agent ended" if stop is Stop.DONE else stop.value
        return self.world.close(stop, unfinished)

    def end(self) -> None:
        """Carries out nothing more. Steps that wait are refused."""
        with self._lock:
            self._over = True
            self._company.notify_all()
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                return
            if work is not None:
                work[1].set_exception(self._refusal())

    def _record_now(self, event: Event) -> None:
        with self._lock:
            self._record(event)
            self._journal.write()

    def _record_reply(self, event: Event) -> None:
        with self._lock:
            if self._over:
                raise self._refusal()
            self._record_now(event)

    def _record_in(self, tree: TraceTree, event: Event) -> None:
        """Records an event of one of its traces, unless they are of models that are not trained.
        These take memory, too.
        """
        if tree is self._tree:
            self._record(event)
        else:
            self._growth.add(event)

    def _record(self, event: Event) -> None:
        self._journal.hold_back(event)
        self._know(event)

    def _know(self, event: Event) -> None:
        self.events.append(event)
        self._growth.add(event)
