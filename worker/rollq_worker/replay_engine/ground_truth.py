"""What the replay engine says: the next ground-truth move of the task that the prompt's text is about, as token ids.

The invariant: the answer depends on the prompt's text and on drawn mistakes alone. What was read before is cached by
prefix, so that a turn costs the decoding of what is new, but nothing depends on the cache.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import logging
import random
import re
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from rollq_worker.protocols import RESPOND, Action
from rollq_worker.replay_engine.mistakes import Mistake, chance, draw, spoilt
from rollq_worker.replay_engine.task_progress import Progress, Scripts
from rollq_worker.tokens.model_family import family_of
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import PARSERS

log = logging.getLogger(__name__)

START, END = "<|im_start|>", "<|im_end|>"
POLITE = "Thank you for your message. Is there anything else that I can help you with?"
"""Said in conversations that are nobody's task, and when all moves are made."""
PREFIXES = 50_000
"""Conversations' beginnings that are remembered."""
_OPEN_THOUGHT = re.compile(r"\s*<think>\s*(</think>\s*)?")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said to one prompt."""

    ids: array[int]
    """array('I'): the rest of the turn, with the stop token at its end; never empty."""
    known: int
    """Tokens of the prompt that were seen before."""


class Player:
    """Plays the tasks of `scripts` through one ChatML tokenizer. `mistakes` is the chance that an episode has one."""

    def __init__(self, tokenizer: Tokenizer, scripts: Scripts, mistakes: float = 0.0) -> None:
        self.tokenizer = tokenizer
        self._scripts = scripts
        self._mistakes = mistakes
        family = family_of(tokenizer)
        self._read = PARSERS[family.parser]
        self.ends = {tokenizer.added_tokens[stop] for stop in family.stops if stop in tokenizer.added_tokens}
        """The tokens at which the model would stop by itself."""
        self._start = tokenizer.added_tokens[START]
        self._end = tokenizer.added_tokens[END]
        self._header = tokenizer.encode(f"{START}assistant\n")
        self._seen: OrderedDict[tuple[int, int], Progress] = OrderedDict()
        self._texts: dict[str, array[int]] = {}
        self._warned = False

    def answer(self, ids: array[int], rng: random.Random) -> Answer:
        """The rest of the turn that the prompt `ids` leaves open."""
        starts = _positions(ids, self._start)
        last = starts[-1] if starts else 0
        progress, known = self._progress(ids, starts)
        begun = ids[last + len(self._header) :] if ids[last : last + len(self._header)] == self._header else array("I")
        return Answer(self._turn(progress, begun, rng), known)

    def forget(self) -> None:
        """Flush the cache."""
        self._seen.clear()

    def _progress(self, ids: array[int], starts: list[int]) -> tuple[Progress, int]:
        """How far the conversation in front of the last header is, and how many of its tokens were seen before."""
        view = memoryview(ids).cast("B")
        keys = [(start, hash(bytes(view[: 4 * start]))) for start in reversed(starts[-8:])]
        progress, known, left = Progress(), 0, starts
        for key in keys:
            if key in self._seen:
                self._seen.move_to_end(key)
                progress, known = self._seen[key], key[0]
                left = [start for start in starts if start >= known]
                break
        for begin, end in pairwise(left):
            progress = self._after(progress, self.tokenizer.decode(ids[begin + 1 : end]))
        if keys and keys[0] not in self._seen:
            self._seen[keys[0]] = progress
            if len(self._seen) > PREFIXES:
                self._seen.popitem(last=False)
        return progress, known

    def _after(self, progress: Progress, message: str) -> Progress:
        role, _, text = message.partition("\n")
        text = text.rpartition(END)[0] if END in text else text
        if role.strip() == "user":
            return progress.after_user(text, self._scripts)
        if role.strip() == "assistant":
            return progress.after_turn(self._read(text, False))
        return progress

    def _turn(self, progress: Progress, begun: array[int], rng: random.Random) -> array[int]:
        if thought := _OPEN_THOUGHT.fullmatch(self.tokenizer.decode(begun)) if begun else None:
            # The template opened the reasoning; there is nothing to reason about.
            return self.spell(self._choose(progress, rng), "" if thought[1] else "\n</think>\n\n")
        if not begun:
            return self.spell(self._choose(progress, rng))
        for choice in self._choices(progress):
            whole = self.spell(choice)
            if len(begun) < len(whole) and whole[: len(begun)] == begun:
                return whole[len(begun) :]
        return array("I", [self._end])  # somebody else began this turn, or it is over

    def _choose(self, progress: Progress, rng: random.Random) -> Action | str:
        task = progress.task
        if task is None and not self._warned:
            self._warned = True
            log.warning("a conversation is about no task of this engine's: it is told %r (--env plays others)", POLITE)
        if task is None or progress.made >= len(task.moves):
            return POLITE
        if self._mistakes and rng.random() < chance(self._mistakes, task):
            return draw(rng, task, progress.made) or task.moves[progress.made]
        return task.moves[progress.made]

    def _choices(self, progress: Progress) -> list[Action | str]:
        """Everything that may be said at this place."""
        task = progress.task
        if task is None or progress.made >= len(task.moves):
            return [POLITE]
        spoiled = [spoilt(kind, task, progress.made) for kind in Mistake]
        return [task.moves[progress.made], *(choice for choice in spoiled if choice is not None)]

    def spell(self, said: Action | str, before: str = "") -> array[int]:
        """array('I'): the turn as sampled tokens, stop token included."""
        text = before + (said if isinstance(said, str) else turn_text(said))
        ids = self._texts.get(text)
        if ids is None:
            if len(self._texts) >= PREFIXES:
                self._texts.clear()
            ids = self._texts[text] = self.tokenizer.encode(text) + array("I", [self._end])
        return ids


def turn_text(move: Action) -> str:
    """A move as the policy writes it: plain text, or one call in Hermes' form."""
    if move.name == RESPOND:
        return str(move.arguments.get("content", ""))
    call = json.dumps({"name": move.name, "arguments": dict(move.arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _positions(ids: array[int], token: int) -> list[int]:
    found: list[int] = []
    at = -1
    try:
        while True:
            at = ids.index(token, at + 1)
            found.append(at)
    except ValueError:
        return found
