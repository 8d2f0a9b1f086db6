"""tau2-bench's telecom: the agent works on the company's data, and the user on a phone, with tools
of its own.

The user calls a tool by a message that is nothing but `<tool_call>{"name": ..., "arguments":
{...}}</tool_call>`, and hears the result in `<tool_response>`. The agent sees neither. The journal
has these messages like all others of the user, so an episode that another worker continues has the
same phone.
"""

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count, groupby
from types import SimpleNamespace
from typing import Any

from rollq.env import Action, Grade, Json, Observation
from rollq.env.customer_service import Case
from rollq.env.foreign_tools import check_calculation, copy_record, guarded
from rollq_integrations.tau.backend import TAU2_STOP_MARKERS
from rollq_integrations.tau.scripted_tasks import REPLIES, respond

USER_TOOLS = """\

Your phone:
You have the phone in your hand and use it with the tools below. Use one when the agent asks you \
to do or look at something, one at a time. To use it, write nothing but
<tool_call>{{"name": "TOOL", "arguments": {{...}}}}</tool_call>
and you get back what the phone shows, in <tool_response>. The agent sees neither: tell it what \
you saw. Never make up what the phone shows.
{tools}"""

_CALL = re.compile(r"\s*<tool_call>(.*)</tool_call>\s*", re.DOTALL)


@dataclass
class TelecomEpisode:
    """The company's data, the user's phone, and every call that was made."""

    environment: Any
    calls: list[Action] = field(default_factory=list)
    bill_numbers: Iterator[int] = field(default_factory=lambda: count(1))


class TelecomBackend:
    """Implements customer_service.Backend."""

    stop_markers: Sequence[str] = TAU2_STOP_MARKERS

    def __init__(self, environment: Any) -> None:
        self._pristine = environment
        self.system_prompt: str = environment.get_policy()
        self.tools: Sequence[Json] = [tool.openai_schema for tool in environment.get_tools()]
        schemas = [
            json.dumps(tool.openai_schema["function"]) for tool in environment.get_user_tools()
        ]
        self._user_tools = USER_TOOLS.format(tools="\n".join(schemas))
        self._current = threading.local()
        self._number_bills(environment.tools)

    def _number_bills(self, tools: Any) -> None:
        """Replaces the random numbers of new bills by a count for each episode, because the agent
        reads them: the same actions must lead to the same observations.
        """
        module: Any = import_module(type(tools).__module__)
        module.uuid = SimpleNamespace(uuid4=self._bill_number)

    def _bill_number(self) -> Any:
        return SimpleNamespace(hex=f"{next(self._current.episode.bill_numbers):08x}")

    def begin(self, case: Case) -> TelecomEpisode:
        pristine = self._pristine
        tools = type(pristine.tools)(copy_record(pristine.tools.db))
        user_tools = type(pristine.user_tools)(copy_record(pristine.user_tools.db))
        environment = type(pristine)(pristine.domain_name, pristine.policy, tools, user_tools)
        episode = TelecomEpisode(environment)
        self._current.episode = episode
        start = case.original.initial_state
        if start is not None:
            environment.set_state(start.initialization_data, start.initialization_actions, [])
        return episode

    def call(self, episode: TelecomEpisode, action: Action) -> Observation:
        return Observation(self._carry_out(episode, "assistant", action))

    def user_call(self, episode: TelecomEpisode, message: str) -> str | None:
        match = _CALL.fullmatch(message)
        if match is None:
            return None
        try:
            call = json.loads(match[1])
            action = Action(call["name"], call.get("arguments") or {})
            if not isinstance(action.name, str) or not isinstance(action.arguments, dict):
                raise TypeError("a call has a name and an object of arguments")
            result = self._carry_out(episode, "user", action)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
            result = f"Error: not a tool call: {e}"
        return f"<tool_response>\n{result}\n</tool_response>"

    def grade(self, episode: TelecomEpisode, case: Case, messages: Sequence[str]) -> Grade:
        criteria = case.original.evaluation_criteria
        basis = {part.value for part in criteria.reward_basis}
        self._current.episode = episode
        assertions = criteria.env_assertions if "ENV_ASSERTION" in basis else None
        actions = criteria.actions if "ACTION" in basis else None
        check = episode.environment.run_env_assertion
        failed = [
            _assertion_text(assertion)
            for assertion in assertions or ()
            if not check(assertion, raise_assertion_error=False)
        ]
        missing = []
        for action in actions or ():
            if not any(action.compare_with_tool_call(call) for call in episode.calls):
                missing.append(action.get_func_format())
        return Grade(0.0 if failed or missing else 1.0, {"failed": failed, "not_called": missing})

    def with_phone(self, case: Case, task: Any, number: int) -> Case:
        """The case with a user who has the phone. The number makes its opening unique in the
        domain.
        """
        moves, replies = _script(task.evaluation_criteria.actions or ())
        return replace(
            case,
            original=task,
            task=replace(
                case.task,
                user_tools=self._user_tools,
                opening=f"{case.task.opening}\nThis is about ticket {number}.",
                moves=moves,
                replies=replies,
            ),
        )

    def _carry_out(self, episode: TelecomEpisode, requestor: str, action: Action) -> str:
        episode.calls.append(action)
        self._current.episode = episode

        def invoke(arguments: dict[str, Json]) -> str:
            check_calculation(action.name, arguments)
            result = episode.environment.make_tool_call(
                action.name, requestor=requestor, **arguments
            )
            episode.environment.sync_tools()
            text: str = episode.environment.to_json_str(result)
            return text

        return guarded(invoke, action.arguments)


def _assertion_text(assertion: Any) -> str:
    return f"{assertion.func_name}({json.dumps(assertion.arguments)})"


def _script(actions: Sequence[Any]) -> tuple[Sequence[Action], Sequence[str]]:
    """The moves of a perfect agent, and the scripted user's replies to them."""
    agrees, asks, leaves = REPLIES
    moves = [respond("Let me make sure that I understand you. Shall I go ahead?")]
    replies = [agrees]
    for requestor, consecutive in groupby(actions, lambda action: action.requestor):
        calls = [Action(action.name, action.arguments) for action in consecutive]
        if requestor == "assistant":
            moves += calls
        else:
            names = ", ".join(call.name for call in calls)
            moves.append(respond(f"Please do this on your phone: {names}."))
            replies += [*map(_as_user_call, calls), "I have done that."]
    moves += [
        respond("It is all done."),
        respond("Yes, it is. Is there anything else I can do for you?"),
    ]
    return moves, [*replies, asks, leaves]


def _as_user_call(call: Action) -> str:
    return f"<tool_call>{json.dumps({'name': call.name, 'arguments': call.arguments})}</tool_call>"
