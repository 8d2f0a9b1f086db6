"""How long an engine takes: a model of SGLang's scheduler with continuous batching, on a clock given from outside.

A step is either a prefill of at most `chunk_tokens` new tokens or a decode of one token for each running request, and
prefill goes first, as in SGLang without mixed chunks. Admission, the estimate of tokens still to come, retraction and
the prefix cache follow SGLang 0.5's scheduler with its defaults (first come, first served; pages of one token).
The shape says how long a step takes. docs/engine.md names the sources.

The invariants: a batch stays as it is between two events, so the model jumps over equal steps; running requests and
the cache never hold more than `kv_tokens`; the result does not depend on how often it is looked at. It knows neither
threads nor real time, nor what the tokens say.
"""

import math
from collections import OrderedDict
from heapq import heappop, heappush

from rollq_worker.simulation.engine_model.kv_memory import KvMemory
from rollq_worker.simulation.engine_model.seat import Seat
from rollq_worker.simulation.engine_model.token_reserve import TokenReserve
from rollq_worker.simulation.engine_model.values import EngineShape, Finished, Load, Progress, Request


class EngineModel:
    """One engine. Calls come in the order of time; what they change is seen from the next step on."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self._memory = KvMemory(shape.kv_tokens, shape.prefix_cache)
        self._reserve = TokenReserve()
        self._now = 0.0
        self._began = 0.0
        """When the steps in progress began."""
        self._ends = math.inf
        """When they end; inf: the engine is idle."""
        self._prefilling: list[tuple[Seat, int]] = []
        """The requests of the prefill step in progress, and their new tokens in it."""
        self._decoding = 0
        """Number of equal decode steps in progress."""
        self._seats: dict[str, Seat] = {}
        self._waiting: OrderedDict[str, Seat] = OrderedDict()
        self._chunked: Seat | None = None
        """The request whose prompt is prefilled in part."""
        self._running: dict[int, Seat] = {}
        self._leaving: list[tuple[int, int, Seat]] = []
        """Heap of running requests by the decode step after which they have all their tokens."""
        self._aborted: list[Seat] = []
        """Aborted requests that leave when the step in progress ends."""
        self._full = False
        """Whether the running batch admits nobody until a request leaves it."""
        self._steps = 0
        """Decode steps so far, without those in progress."""
        self._context = 0
        """Tokens in the contexts of the running requests."""
        self._numbers = 0
        self._finished: list[Finished] = []
        self._retractions = 0
        self._busy_s = 0.0
        self._prompt_tokens = self._cached_tokens = self._sampled_tokens = 0

    def submit(self, request: Request, now: float) -> None:
        """Queue a request. Raises ValueError for an id in use, an empty prompt, and what never fits into memory."""
        self._move(now)
        if request.rid in self._seats:
            raise ValueError(f"request {request.rid} is in flight; choose another id")
        self._numbers += 1
        seat = Seat(request, self._numbers, now, self.shape.kv_tokens)
        if not seat.prompt:
            raise ValueError(f"request {request.rid} has an empty prompt, which no engine accepts; give it tokens")
        if seat.prompt + request.output_tokens >= self.shape.kv_tokens:
            raise ValueError(
                f"request {request.rid} has {seat.prompt} + {request.output_tokens} tokens, and the engine"
                f" has memory for {self.shape.kv_tokens}; give the shape more kv_tokens"
            )
        self._seats[request.rid] = self._waiting[request.rid] = seat
        if self._ends == math.inf:
            self._began = self._ends = now
        elif not self._full:
            self._cut()

    def abort(self, rid: str, now: float) -> int:
        """End a request early. Returns the tokens sampled so far, whose cache stays; 0 for an unknown one."""
        progress = self.progress(rid, now)
        if progress is None:
            return 0
        seat = self._seats.pop(rid)
        seat.aborted_after = progress.sampled
        if self._waiting.pop(rid, None) is None:
            self._aborted.append(seat)
            self._cut()
        return progress.sampled

    def progress(self, rid: str, now: float) -> Progress | None:
        """How far the request is; None for one that was not submitted, has ended or was aborted."""
        self._move(now)
        seat = self._seats.get(rid)
        if seat is None:
            return None
        sampled = seat.sampled if seat.number not in self._running else self._sampled(seat) + self._steps_done()
        return Progress(rid in self._waiting, sampled, seat.cached, seat.retractions)

    def retract_all(self, now: float) -> None:
        """Put all admitted requests back into the queue, as a pause with `retract` does. The step in progress is lost;
        sampled tokens stay sampled, and are prefilled again."""
        self._move(now)
        self._stop()
        admitted = list(self._running.values()) + [seat for seat, _ in self._prefilling]
        if self._chunked is not None and self._chunked not in admitted:
            admitted.append(self._chunked)
        self._prefilling, self._chunked = [], None
        self._leave_aborted()
        for seat in admitted:
            if seat.aborted_after is None:
                self._requeue(seat)
            elif seat.held:
                self._memory.drop(seat)
        self._began = self._ends = now if self._waiting else math.inf

    def flush_cache(self) -> None:
        """Evict what no request holds."""
        self._memory.flush()

    def next_event(self) -> float:
        """When the batch changes next, and a request may finish; inf while idle. A submit or abort can move it."""
        return self._finished[0].at if self._finished else self._ends

    def advance(self, now: float) -> list[Finished]:
        """All requests that end up to `now` and were not returned before, in order of time."""
        self._move(now)
        while self._ends <= now:
            self._next()
        found, self._finished = self._finished, []
        return found

    def load(self, now: float) -> Load:
        """The load at `now`, before the events of that very moment. Requests in prefill count as running."""
        self._move(now)
        steps = self._steps_done()
        used = self._memory.used + steps * len(self._running)
        return Load(
            running=len(self._seats) - len(self._waiting),
            waiting=len(self._waiting),
            used_tokens=used,
            token_usage=used / self.shape.kv_tokens,
            retractions=self._retractions,
            busy_s=self._busy_s + (now - self._began if self._ends != math.inf else 0.0),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            sampled_tokens=self._sampled_tokens + steps * len(self._running),
        )

    def _move(self, now: float) -> None:
        """Go through all events before `now`; those at `now` wait, so that what comes at that moment joins them."""
        if now < self._now:
            raise ValueError(f"the model is at {self._now} s, and was asked for {now} s")
        self._now = now
        while self._ends < now:
            self._next()

    def _next(self) -> None:
        """End the steps in progress and begin the next ones."""
        at = self._ends
        self._busy_s += at - self._began
        if self._prefilling:
            self._end_prefill(at)
        elif self._decoding:
            self._end_decode(at, self._decoding)
        self._leave_aborted()
        self._began = at
        self._prefilling = self._admit(at)
        if self._prefilling:
            self._decoding = 0
            self._ends = at + self.shape.prefill_s((seat.computed, take) for seat, take in self._prefilling)
            return
        self._decoding = self._steps_until_change()
        self._ends = at + self._decode_s(self._decoding) if self._decoding else math.inf
        if not self._running:
            self._reserve.reset()

    def _admit(self, at: float) -> list[tuple[Seat, int]]:
        """The requests of the next prefill step; none when the batch is full or nothing waits."""
        if not self._chunked and (self._full or not self._waiting):
            return []
        shape, memory = self.shape, self._memory
        budget, rows = shape.chunk_tokens, []
        room = memory.available - self._reserve.tokens
        if (seat := self._chunked) is not None:
            take = min(budget, seat.missing, memory.available - 1)
            if take <= 0:
                return []
            self._chunked = None if take == seat.missing else seat
            rows.append((seat, take))
            memory.take(seat, take)
            budget -= take
            room -= take + (0 if self._chunked else seat.may_sample)
        while budget and self._waiting:
            seat = next(iter(self._waiting.values()))
            if len(self._running) + len(rows) >= shape.max_running:
                self._full = True
                break
            missing, pinned = memory.match(seat)
            if missing + seat.may_sample >= room - pinned and (rows or self._running):
                memory.let_go(seat)
                self._full = True
                break
            take = min(missing, budget)
            self._admit_one(seat, take, at)
            rows.append((seat, take))
            budget -= take
            room -= pinned + take + (seat.may_sample if take == missing else 0)
        return rows

    def _admit_one(self, seat: Seat, take: int, at: float) -> None:
        del self._waiting[seat.request.rid]
        if not seat.admissions:
            seat.admitted_at = at
            seat.cached = seat.computed
            self._prompt_tokens += seat.prompt
            self._cached_tokens += seat.computed
        seat.admissions += 1
        if take < seat.missing:
            self._chunked = seat
        self._memory.take(seat, take)

    def _end_prefill(self, at: float) -> None:
        rows, self._prefilling = self._prefilling, []
        for seat, take in rows:
            seat.computed += take
            self._memory.store_prompt(seat)
            if seat.missing or seat.aborted_after is not None:
                continue
            if seat.first_token_at is None:
                seat.first_token_at = at
            if seat.sampled < seat.request.output_tokens:
                self._memory.take(seat, 1)
                seat.sampled += 1
                seat.computed += 1
                self._sampled_tokens += 1
            if seat.sampled == seat.request.output_tokens:
                self._finish(seat, at)
                continue
            self._running[seat.number] = seat
            self._reserve.join(seat)
            self._context += seat.prompt + seat.sampled
            seat.leaves = self._steps + seat.request.output_tokens - seat.sampled
            heappush(self._leaving, (seat.leaves, seat.number, seat))

    def _end_decode(self, at: float, steps: int) -> None:
        running = len(self._running)
        self._steps += steps
        self._context += steps * running
        self._sampled_tokens += steps * running
        self._memory.grow_all(steps * running)
        self._reserve.decode(steps)
        while self._leaving and self._leaving[0][0] <= self._steps:
            seat = heappop(self._leaving)[2]
            if self._running.get(seat.number) is seat and seat.leaves <= self._steps:
                self._take_out(seat)
                if seat.aborted_after is None:
                    self._finish(seat, at)

    def _finish(self, seat: Seat, at: float) -> None:
        self._memory.finish(seat, seat.request.stored)
        self._full = False
        del self._seats[seat.request.rid]
        assert seat.first_token_at is not None
        queued, prefill = seat.admitted_at - seat.submitted_at, seat.first_token_at - seat.admitted_at
        rid = seat.request.rid
        self._finished.append(Finished(rid, at, seat.cached, queued, prefill, seat.retractions))

    def _take_out(self, seat: Seat) -> None:
        """Take the request out of the running batch; its memory stays held."""
        del self._running[seat.number]
        seat.sampled = self._sampled(seat)
        self._memory.settle(seat)
        self._context -= seat.prompt + seat.sampled
        self._reserve.leave(seat)

    def _sampled(self, seat: Seat) -> int:
        return seat.request.output_tokens - (seat.leaves - self._steps)

    def _leave_aborted(self) -> None:
        for seat in self._aborted:
            if seat.number in self._running:
                self._take_out(seat)
            if seat is self._chunked:
                self._chunked = None
            if seat.held:
                self._memory.finish(seat, None)
            self._full = False
        self._aborted.clear()

    def _steps_until_change(self) -> int:
        """Equal decode steps from here on. Retracts requests first when memory has no token for each."""
        if not self._running:
            return 0
        if self._memory.available < len(self._running):
            self._retract()
        if self._waiting and not self._full:
            return 1  # admission is tried again after the step
        while self._leaving[0][2].number not in self._running or self._leaving[0][0] != self._leaving[0][2].leaves:
            heappop(self._leaving)
        return min(self._leaving[0][0] - self._steps, self._memory.available // len(self._running))

    def _retract(self) -> None:
        """Put requests back into the queue until each other one can sample a token: those with the fewest first."""
        order = sorted(self._running.values(), key=lambda seat: (self._sampled(seat), -seat.prompt), reverse=True)
        while len(order) > 1 and self._memory.available < len(order):
            self._requeue(order.pop())
        if self._chunked is not None and self._memory.available < len(order):
            self._requeue(self._chunked)
            self._chunked = None
        self._reserve.after_retraction()

    def _requeue(self, seat: Seat) -> None:
        if seat.number in self._running:
            self._take_out(seat)
        self._memory.drop(seat)
        seat.retractions += 1
        self._retractions += 1
        self._waiting[seat.request.rid] = seat
        self._full = False

    def _decode_s(self, steps: int) -> float:
        return self.shape.decode_s(steps, len(self._running), self._context)

    def _steps_done(self) -> int:
        """Decode steps that have ended by now, of those in progress."""
        if self._prefilling or not self._decoding:
            return 0
        passed = self._now - self._began
        return min(self.shape.decode_steps_within(passed, len(self._running), self._context), self._decoding)

    def _cut(self) -> None:
        """End the decode steps in progress with the step that is under way."""
        if self._prefilling or self._decoding <= 1:
            return
        done = self._steps_done()
        steps = done if done and self._began + self._decode_s(done) >= self._now else done + 1
        if steps < self._decoding:
            self._decoding = steps
            self._ends = self._began + self._decode_s(steps)

    def _stop(self) -> None:
        """End the steps in progress at once. What the last of them would have sampled is not."""
        done = self._steps_done()
        self._busy_s += self._now - self._began if self._ends != math.inf else 0.0
        if done:
            self._end_decode(self._now, done)
        self._decoding = 0
