"""The turns of the replay engine: the next ground-truth move of the task in the prompt, as token
ids.

Where a summary is requested, the reply states how many moves are made. The invariant: the reply
depends only on the prompt's text and on randomly drawn mistakes.

Conversations are cached by prefix, so a turn costs only the decoding of what is new. No reply
depends on the cache.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import logging
import random
import re
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from rollq.env import RESPOND, Action
from rollq.errors import SettingsError
from rollq_worker.episode.text_actions import TextForm, write_action
from rollq_worker.replay_engine.images import without_images
from rollq_worker.replay_engine.policy.mistakes import (
    Mistake,
    chance_per_turn,
    draw_mistake,
    spoiled_move,
)
from rollq_worker.replay_engine.policy.task_progress import TaskIndex, TaskProgress
from rollq_worker.tokens.family_detection import family_of
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import readers_for

log = logging.getLogger(__name__)

START, END = "<|im_start|>", "<|im_end|>"
POLITE = "Thank you for your message. Is there anything else that I can help you with?"
"""The reply to other texts than conversations, and when all moves are made."""
_POLITE_MOVE = Action(RESPOND, {"content": POLITE})
UNKNOWN_TASK = (
    "I am rollq's replay engine and do not play this task: start `rollq engine --env` with its "
    "environment."
)
"""The reply in conversations about no known task, so that a rollout shows why it earned nothing."""
_UNKNOWN_MOVE = Action(RESPOND, {"content": UNKNOWN_TASK})
MOST_CACHED = 50_000
"""Number of prefixes of conversations, and of encoded texts, that are kept."""
_OPEN_THOUGHT = re.compile(r"\s*<think>\s*(</think>\s*)?")


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    ids: array[int]
    """array('I'): the rest of the turn, with the stop token at its end; never empty."""
    cached: int
    """Prompt tokens whose conversation was cached."""


class GroundTruth:
    """Plays the moves of `tasks` through one ChatML tokenizer. `mistakes` is the chance that an
    episode has at least one.
    """

    def __init__(self, tokenizer: Tokenizer, tasks: TaskIndex, mistakes: float = 0.0) -> None:
        """Raises SettingsError for a vocabulary without ChatML's tokens."""
        missing = [token for token in (START, END) if token not in tokenizer.added_tokens]
        if missing:
            raise SettingsError(
                f"the replay engine writes ChatML, and the vocabulary of {tokenizer.name} has no "
                f"{' and no '.join(missing)}: start engine and workers with a ChatML model, or "
                "play this one on SGLang"
            )
        self.tokenizer = tokenizer
        self._tasks = tasks
        self._mistakes = mistakes
        family = family_of(tokenizer, tools=False)  # one that takes calls still reads them
        self._read_calls = readers_for(tokenizer.added_tokens)[family.parser]
        added = tokenizer.added_tokens
        self.eos_ids = frozenset(added[stop] for stop in family.stops if stop in added)
        """The tokens at which the model would stop by itself."""
        self._start = added[START]
        self._end = added[END]
        self._header = tokenizer.encode(f"{START}assistant\n")
        self._cache: OrderedDict[tuple[int, int], TaskProgress] = OrderedDict()
        self._encoded: dict[str, array[int]] = {}
        self._warned = False

    def next_turn(self, ids: array[int], rng: random.Random) -> PlannedTurn:
        """The rest of the turn that the prompt `ids` leaves open."""
        starts = _positions(ids, self._start)
        last = starts[-1] if starts else 0
        begin = last + len(self._header)
        progress, cached = self._progress(ids, starts)
        begun_ids = ids[begin:] if ids[last:begin] == self._header else array("I")
        return PlannedTurn(self._rest_of_turn(progress, begun_ids, rng), cached)

    def flush_cache(self) -> None:
        self._cache.clear()

    def _progress(self, ids: array[int], starts: list[int]) -> tuple[TaskProgress, int]:
        """Progress of the messages before the last header, and the number of their tokens that were
        cached.
        """
        view = memoryview(ids).cast("B")
        latest = reversed(starts[-8:])  # others are hardly ever in the cache
        # lengths of prefixes with a hash of each; an id has 4 bytes
        keys = [(start, hash(bytes(view[: 4 * start]))) for start in latest]
        progress, cached = self._cached_progress(keys)
        unread = [start for start in starts if start >= cached]
        for begin, end in pairwise(unread):
            message = self.tokenizer.decode(ids[begin + 1 : end])
            progress = self._progress_after(progress, message)
        if keys and keys[0] not in self._cache:
            self._cache[keys[0]] = progress
            if len(self._cache) > MOST_CACHED:
                self._cache.popitem(last=False)
        return progress, cached

    def _cached_progress(self, keys: Sequence[tuple[int, int]]) -> tuple[TaskProgress, int]:
        """Progress at the longest prefix that is cached, and its length in tokens."""
        for key in keys:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key], key[0]
        return TaskProgress(), 0

    def _progress_after(self, progress: TaskProgress, message: str) -> TaskProgress:
        role, _, text = message.partition("\n")
        role = role.strip()
        if END in text:
            text = text.rpartition(END)[0]
        text = without_images(text)
        if role == "system":
            return progress.after_system(text)
        if role == "user":
            return progress.after_user(text, self._tasks)
        if role == "assistant":
            return progress.after_turn(self._read_calls(text, False))
        return progress

    def _rest_of_turn(
        self, progress: TaskProgress, begun_ids: array[int], rng: random.Random
    ) -> array[int]:
        form = progress.form
        if not begun_ids:
            return self.encode_turn(self._draw_move(progress, rng), form)
        thought = _OPEN_THOUGHT.fullmatch(self.tokenizer.decode(begun_ids))
        if thought:
            # The template opened the reasoning; there is nothing to reason about.
            end_of_thought = "" if thought[1] else "\n</think>\n\n"
            return self.encode_turn(self._draw_move(progress, rng), form, end_of_thought)
        # The client sends the beginning of a turn: continue it.
        for move in self._possible_moves(progress):
            turn = self.encode_turn(move, form)
            if len(begun_ids) < len(turn) and turn[: len(begun_ids)] == begun_ids:
                return turn[len(begun_ids) :]
        return array("I", [self._end])  # this engine did not begin the turn, or the turn is over

    def _draw_move(self, progress: TaskProgress, rng: random.Random) -> Action | str:
        task = progress.task
        move = progress.next_move
        if task is None and progress.opened:
            if not self._warned:
                self._warned = True
                log.warning(
                    "a conversation is about no task that this engine plays (see --env); it gets "
                    "%r",
                    UNKNOWN_TASK,
                )
            return _UNKNOWN_MOVE
        if progress.summing_up:
            return progress.summary
        if task is None or move is None:
            return _POLITE_MOVE
        if self._mistakes and rng.random() < chance_per_turn(self._mistakes, task):
            return draw_mistake(rng, task, progress.made) or move
        return move

    def _possible_moves(self, progress: TaskProgress) -> list[Action | str]:
        task = progress.task
        move = progress.next_move
        if progress.summing_up:
            return [progress.summary]
        if task is None or move is None:
            return [_UNKNOWN_MOVE, _POLITE_MOVE]
        spoiled = [spoiled_move(kind, task, progress.made) for kind in Mistake]
        return [move, *(choice for choice in spoiled if choice is not None)]

    def encode_turn(
        self, move: Action | str, form: TextForm | None = None, before: str = ""
    ) -> array[int]:
        """array('I'): the turn as sampled tokens, stop token included."""
        turn = move if isinstance(move, str) else turn_text(move, form)
        text = before + turn
        ids = self._encoded.get(text)
        if ids is None:
            if len(self._encoded) >= MOST_CACHED:
                self._encoded.clear()
            ids = self.tokenizer.encode(text) + array("I", [self._end])
            self._encoded[text] = ids
        return ids


def turn_text(move: Action, form: TextForm | None = None) -> str:
    """A move as the policy writes it: an action in that form, else plain text or one call in
    Hermes' form.
    """
    if form is not None:
        return write_action(move, form)
    if move.name == RESPOND:
        return str(move.arguments.get("content", ""))
    call = {"name": move.name, "arguments": dict(move.arguments)}
    text = json.dumps(call, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def _positions(ids: array[int], token: int) -> list[int]:
    positions = []
    at = -1
    with suppress(ValueError):  # no more
        while True:
            at = ids.index(token, at + 1)
            positions.append(at)
    return positions
