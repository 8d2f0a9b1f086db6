"""An episode of a task of verifiers: the policy talks and calls tools, and the package's functions
see a trace of that.

It does not know what tasks can be played.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from rollq.env import RESPOND, Action, Grade, Json, Observation, User
from rollq.errors import EnvironmentFailure
from rollq_integrations.verifiers.package import OwnLoop, call, package, part
from rollq_integrations.verifiers.tasks import prompt_of
from rollq_integrations.verifiers.toolsets import Toolsets


class Episode:
    """Implements rollq.env.Environment. A turn with several calls becomes as many messages of one
    call each.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        self.system_prompt, question = prompt_of(task.data)
        self._loop = OwnLoop()
        self._trace = _new_trace(task)
        self._toolsets = Toolsets(task, self._trace)
        self.tools: Sequence[Json] = ()
        if self.system_prompt:
            self._add("SystemMessage", content=self.system_prompt)
        self._add("UserMessage", content=question)
        try:
            self.tools = self._loop.wait(self._open())
        except BaseException:
            self.close()
            raise

    def reset(self, user: User) -> str:
        return user.open()

    def step(self, action: Action) -> Observation:
        if action.name == RESPOND:
            self._add("AssistantMessage", sampled=True, content=str(action.arguments["content"]))
            return Observation("", done=True)
        made = {"id": f"call_{len(self._trace.nodes)}", "name": action.name}
        arguments = json.dumps(dict(action.arguments))
        self._add("AssistantMessage", sampled=True, tool_calls=[{**made, "arguments": arguments}])
        said = self._loop.wait(self._toolsets.call(action))
        self._add("ToolMessage", tool_call_id=made["id"], name=action.name, content=said)
        return Observation(said, done=self._loop.wait(self._stops()))

    def grade(self) -> Grade:
        self._loop.wait(self._score())
        trace = self._trace
        missing = [
            name
            for scores in (trace.rewards, trace.metrics)
            for name, score in scores.items()
            if score is None
        ]
        if missing:
            raise EnvironmentFailure(f"verifiers gave no score for {', '.join(missing)}")
        info: dict[str, Json] = {
            "rewards": {
                name: {"score": reward.score, "weight": reward.weight}
                for name, reward in trace.rewards.items()
            },
            "metrics": dict(trace.metrics),
        }
        if trace.stop_condition:
            info["stop"] = trace.stop_condition
        return Grade(float(trace.reward), info)

    def close(self) -> None:
        self._loop.close(self._toolsets.close())

    def _add(self, kind: str, sampled: bool = False, **fields: Any) -> None:
        vf = package()
        nodes = self._trace.nodes
        parent = len(nodes) - 1 if nodes else None
        nodes.append(
            vf.MessageNode(parent=parent, message=getattr(vf, kind)(**fields), sampled=sampled)
        )

    async def _open(self) -> Sequence[Json]:
        await call(self._task.setup, {"trace": self._trace})
        return await self._toolsets.open()

    async def _stops(self) -> bool:
        """True if a stop condition holds, which the package asks before each turn of the model."""
        for function in self._task.hooks("stop"):
            if await call(function, {package().Trace: self._trace}):
                self._trace.stop_condition = function.__name__
                return True
        return False

    async def _score(self) -> None:
        await call(self._task.finalize, {"trace": self._trace})
        self._trace.is_completed = True
        await self._task.score(self._trace)


def _new_trace(task: Any) -> Any:
    vf = package()
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    state = part("state", "state_cls")(type(task))()
    return _trace_type()(task=about, state=state, agent=vf.AgentInfo(config=vf.AgentConfig()))


@cache
def _trace_type() -> Any:
    """The package's Trace, but a reward that asks for numbers of tokens gets an error, not 0."""

    def unknown(trace: Any) -> int:
        raise EnvironmentFailure(
            "this reward counts tokens, which the trace of an episode of rollq does not have"
        )

    counts = ("num_input_tokens", "num_output_tokens", "num_total_tokens", "usage")
    return type("PlayedTrace", (package().Trace,), {name: property(unknown) for name in counts})
