"""A user who knows the task and the answers: it states its wish, agrees, and leaves when it has
heard enough.

It is deterministic and needs no model. It stops as soon as the agent has told it every output of
the task, unless it was just asked for its consent. A user that has tools makes the calls of the
ground truth in their order, each when the agent's last message names its tool. It knows nothing of
rewards: the environment grades.
"""

import json
import re

from rollq.env import STOP_MARKER, Task

MAX_REPLIES = 12
"""Number of replies after which it leaves, whatever it has heard."""
FAREWELL = f"Thank you, that is all. {STOP_MARKER}"
AGREEMENT = "Yes, please go ahead."

_ASKS_CONSENT = re.compile(
    r"\b(go ahead|proceed|confirm|shall i|should i|would you like me to|do you agree)\b", re.I
)
_FIRST_PERSON = (
    (r"\byou are\b", "I am"),
    (r"\byou're\b", "I'm"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    (r"\byou\b", "I"),
)


class OracleUser:
    """Answers each question with the sentence of its instruction that fits best, or the next one
    not said yet.
    """

    def __init__(self, task: Task) -> None:
        self._opening = task.opening
        sentences = re.split(r"(?<=[.!?])\s+", task.instruction.strip())
        self._facts = [_first_person(sentence) for sentence in sentences if sentence]
        self._unsaid = list(range(len(self._facts)))
        self._awaited = [_plain(output) for output in task.outputs]
        self._waits = bool(task.outputs)
        self._replies_left = MAX_REPLIES

        self._calls = [line for line in task.replies if line.startswith("<tool_call>")]
        self._last_message = ""

    def open(self) -> str:
        return self._opening

    def reply(self, message: str) -> str:
        is_result = message.startswith("<tool_response>")
        if not is_result:
            self._last_message = message
        call = self._next_call()
        if call is not None:
            return call
        if is_result:
            return f"I have done that. I see: {' '.join(message.split()[1:-1])}"
        self._replies_left -= 1
        self._awaited = [output for output in self._awaited if output not in _plain(message)]
        # A question for consent often contains the outputs already, but nothing has been done yet.
        is_question = "?" in message
        if self._replies_left > 0 and is_question and _ASKS_CONSENT.search(message):
            return AGREEMENT
        heard_all = self._waits and not self._awaited
        if self._replies_left <= 0 or heard_all:
            return FAREWELL
        if self._unsaid or is_question:
            return self._answer(message)
        return self._facts[-1] if self._waits and self._facts else FAREWELL

    def recall(self, heard: str | None, reply: str) -> None:
        if heard is not None:
            self.reply(heard)  # answering again brings it to the same state

    def _next_call(self) -> str | None:
        """The next call of the ground truth, if the agent's last message names its tool."""
        if not self._calls:
            return None
        words = set(re.findall(r"[a-z]+", self._last_message.lower()))
        call = json.loads(self._calls[0].removeprefix("<tool_call>").removesuffix("</tool_call>"))
        if set(call["name"].split("_")) <= words:
            return self._calls.pop(0)
        return None

    def _answer(self, question: str) -> str:
        if not self._facts:
            return "I have nothing to add."
        words = _words(question)
        shared = [len(words & _words(fact)) for fact in self._facts]
        # Most words in common; among equals a fact that was not said yet, then the first.
        best = max(range(len(self._facts)), key=lambda n: (shared[n], n in self._unsaid, -n))
        if not shared[best] and self._unsaid:
            best = self._unsaid[0]
        if best in self._unsaid:
            self._unsaid.remove(best)
        return self._facts[best]


def _first_person(fact: str) -> str:
    for pattern, word in _FIRST_PERSON:
        fact = re.sub(pattern, word, fact, flags=re.I)
    return fact[:1].upper() + fact[1:]


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9@.-]+", text.lower()) if len(word) > 3}


def _plain(text: str) -> str:
    return text.lower().replace(",", "")
