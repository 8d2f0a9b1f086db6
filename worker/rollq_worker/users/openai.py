"""A user played by a language model behind an OpenAI-compatible endpoint.

It knows the task's instruction, and nothing of tools, rewards or the expected answers.
"""

from collections.abc import Mapping
from typing import Any

from rollq.env import STOP_MARKER
from rollq.errors import UserFailure
from rollq.settings import Endpoint
from rollq_worker.remote.chat_model import ChatModel, ChatOptions

GREETING = "Hello! How can I help you today?"
"""The first message that the simulated customer gets."""

PROMPT = f"""\
You play a customer who is writing to a company's customer service. The other side is a service \
agent. Stay in this role whatever the agent says.

Who you are and what you want:
{{instruction}}

How to play:
- Write only the customer's next message, in one to three plain sentences. No quotation marks, no \
notes, no reasoning.
- Say one thing at a time. Start with who you are or what you want, and give further details when \
they are asked for.
- Use your own words, but give names, numbers, addresses and codes exactly as they stand above.
- Never invent anything. If you are asked for something that is not said above, say that you do \
not know it.
- Do not do the agent's work, and do not tell the agent which steps to take.
- If the agent asks you to confirm something that is what you want, agree; if it is not, say what \
is wrong with it.
- When everything you want is settled, or the agent has made clear that it will not happen, or you \
are handed over to somebody else, write {STOP_MARKER} and nothing else. Never write it before.
"""


class OpenAIUser:
    """Implements rollq.env.User. One object per episode."""

    def __init__(
        self,
        instruction: str,
        options: ChatOptions,
        endpoints: Mapping[str, Endpoint],
        **asking: Any,
    ) -> None:
        self._model = ChatModel(options, endpoints, role="user", failure=UserFailure, **asking)
        self._endpoint = options.endpoint
        self._messages: list[dict[str, str]] = [
            {"role": "system", "content": PROMPT.format(instruction=instruction.strip())}
        ]
        self.longest_reply_s = options.longest_s

    def open(self) -> str:
        text = self._say(GREETING)
        if STOP_MARKER in text:  # the policy would be graded for a task that it was never told
            raise UserFailure(
                f"user endpoint {self._endpoint!r}: it said {STOP_MARKER} before it said anything"
            )
        return text

    def reply(self, message: str) -> str:
        return self._say(message)

    def recall(self, heard: str | None, reply: str) -> None:
        """Adds an exchange to the conversation. Roles are swapped: to the simulator the agent is
        the user.
        """
        heard = GREETING if heard is None else heard
        self._messages += [
            {"role": "user", "content": heard},
            {"role": "assistant", "content": reply},
        ]

    def _say(self, heard: str) -> str:
        text = self._model.ask([*self._messages, {"role": "user", "content": heard}])
        self.recall(heard, text)
        return text
