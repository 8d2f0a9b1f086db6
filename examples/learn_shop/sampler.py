"""A small sampler: many requests at once over one model, interrupted for new weights as an SGLang
server is.

One thread owns the model and everything below; the HTTP server hands it commands. The invariant:
each token has the logprob and the weight version under which it was sampled. It knows nothing of
HTTP.
"""

import queue
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from transformers import AutoModelForCausalLM

from examples.learn_shop.slots import Slots

PREFILLS = 16
"""Largest number of prompts that one forward pass reads."""


@dataclass(eq=False)
class Request:
    rid: str
    prompt: list[int]
    max_new_tokens: int
    stop_ids: frozenset[int]
    temperature: float = 1.0
    """Temperature of the samples. 0.0 takes the likeliest token, with its logprob at temperature 1.
    """
    seed: int | None = None
    """Seed of the samples: the same one, with the same prompt and weights, gives the same tokens,
    whatever else runs.
    """
    reply: "Future[dict[str, Any]]" = field(default_factory=Future)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """The weight version of each sampled token."""
    slot: int | None = None
    """Place in `Slots` while it runs."""
    cached: int = 0


class Sampler(threading.Thread):
    """Samples until the process ends. `call` runs a method in its thread."""

    def __init__(
        self, path: str, version: str, *, running: int = 64, context: int = 1024, seed: int = 0
    ) -> None:
        super().__init__(name="sampler", daemon=True)
        self.path, self.version = path, version
        self.paused = False
        self.slots = Slots(AutoModelForCausalLM.from_pretrained(path), running, context)
        self.context = context
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.sampled = 0
        self._free = list(range(running))
        self._commands: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._random = random.Random(seed)

    def call(self, command: Callable[[], Any]) -> "Future[Any]":
        """Runs the command between two forward passes."""
        done: Future[Any] = Future()
        self._commands.put((command, done))
        return done

    def run(self) -> None:
        while True:
            self._obey(wait=self.paused or not (self.running or self.waiting))
            if self.paused:
                continue
            self._admit()
            if self.running:
                self._advance({request.slot: request for request in self.running})

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    @torch.inference_mode()
    def score(self, ids: list[int], start: int) -> list[list[Any]]:
        """SGLang's `input_token_logprobs`: of `ids[start:]`, the first of which has none."""
        rows = self.slots.model(torch.tensor([ids[:-1]])).logits[0, start:].log_softmax(-1)
        scored = torch.tensor(ids[start + 1 :], dtype=torch.long)
        logprobs = rows.gather(1, scored[:, None])[:, 0].tolist()
        return [
            [logprob, id, None] for logprob, id in zip([None, *logprobs], ids[start:], strict=True)
        ]

    def abort(self, rid: str | None) -> None:
        """Ends the request, or all of them, with what it has sampled."""
        for request in [*self.running, *self.waiting]:
            if rid in (None, request.rid):
                self._finish(
                    request,
                    {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
                )

    def pause(self, mode: str) -> None:
        """`abort` ends all requests, `retract` reads their tokens again later, `in_place` keeps
        keys and values.
        """
        self.paused = True
        if mode == "abort":
            self.abort(None)
        elif mode == "retract":
            self.retract()

    def retract(self) -> None:
        """Puts all running requests back into the queue, with what they have sampled."""
        for request in reversed(self.running):
            self._release(request)
            self.waiting.appendleft(request)
        self.running.clear()

    def resume(self) -> None:
        self.paused = False

    def load(self, path: str, version: str | None, *, flush: bool) -> None:
        """Loads weights of the same shape, from a folder that may have nothing else."""
        load_model(self.slots.model, Path(path) / "model.safetensors")
        self.path, self.version = path, self.version if version is None else version
        if flush:
            self.flush()

    def flush(self) -> None:
        """Forgets all keys and values. Requests that run go on as after `retract`."""
        self.retract()
        self.slots.forget()

    def _obey(self, *, wait: bool) -> None:
        for _ in range(max(wait, self._commands.qsize())):
            command, done = self._commands.get()
            if not done.set_running_or_notify_cancel():  # the client has gone
                continue
            try:
                done.set_result(command())
            except Exception as error:  # it is the caller's
                done.set_exception(error)

    def _admit(self) -> None:
        """Reads prompts of waiting requests into free slots, and samples the token after each."""
        admitted: dict[int, Request] = {}
        while self.waiting and self._free and len(admitted) < PREFILLS:
            request = self.waiting.popleft()
            request.slot, request.cached = self.slots.begin(
                request.prompt + request.ids, self._free
            )
            self._free.remove(request.slot)
            self.running.append(request)
            admitted[request.slot] = request
        if admitted:
            self._advance(admitted)

    def _advance(self, requests: dict[int, Request]) -> None:
        """One more token of each request."""
        new = {
            slot: (r.prompt + r.ids)[len(self.slots.held[slot]) :] for slot, r in requests.items()
        }
        logits = self.slots.forward(new)
        scale = torch.tensor([request.temperature or 1.0 for request in requests.values()])
        scores = torch.log_softmax(
            torch.stack([logits[slot] for slot in requests]) / scale[:, None], -1
        )
        below = scores.exp().cumsum(-1)
        chance = (
            torch.tensor([self._draw(request) for request in requests.values()])[:, None]
            * below[:, -1:]
        )
        greedy = torch.tensor([request.temperature == 0.0 for request in requests.values()])
        chosen = torch.where(greedy, scores.argmax(-1), torch.searchsorted(below, chance)[:, 0])
        logprobs = scores.gather(1, chosen[:, None])[:, 0].tolist()
        for request, token, logprob in zip(
            requests.values(), chosen.tolist(), logprobs, strict=True
        ):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            self.sampled += 1
            if token in request.stop_ids:
                self._finish(request, {"type": "stop", "matched": token})
            elif len(request.ids) >= request.max_new_tokens:
                self._finish(request, {"type": "length", "length": len(request.ids)})

    def _draw(self, request: Request) -> float:
        if request.seed is None:
            return self._random.random()
        return random.Random(f"{request.seed} {len(request.prompt) + len(request.ids)}").random()

    def _finish(self, request: Request, reason: dict[str, Any]) -> None:
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._release(request)
        if request.reply.set_running_or_notify_cancel():  # else the client has gone
            request.reply.set_result(self._reply(request, reason))

    def _release(self, request: Request) -> None:
        self._free.append(request.slot)
        request.slot = None

    def _reply(self, request: Request, reason: dict[str, Any]) -> dict[str, Any]:
        spans = []
        at = 0
        for version, tokens in groupby(request.versions):
            end = at + len(list(tokens))
            spans.append({"version": version, "start": at, "end": end})
            at = end
        entries = [
            [logprob, id, None] for logprob, id in zip(request.logprobs, request.ids, strict=True)
        ]
        meta = {
            "id": request.rid,
            "finish_reason": reason,
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(request.ids),
            "cached_tokens": min(request.cached, len(request.prompt)),
            "weight_version": spans[-1]["version"] if spans else self.version,
            "weight_versions": spans,
            "output_token_logprobs": entries,
        }
        return {"text": "", "output_ids": request.ids, "meta_info": meta}
