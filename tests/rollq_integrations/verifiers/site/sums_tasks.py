"""A taskset with tools that keep a state, and one of each kind of function that scores."""

import verifiers.v1 as vf
from pydantic import Field

__all__ = ["SumsTaskset"]


class SumsState(vf.State):
    total: int = 0
    asked: list[int] = Field(default_factory=list)


class SumsData(vf.TaskData):
    numbers: list[int]


class SumsToolset(vf.Toolset[vf.ToolsetConfig, SumsState]):
    TOOL_PREFIX = "sums"

    async def setup_task(self, task: SumsData) -> None:
        self.numbers = task.numbers

    @vf.tool
    def number(self, n: int) -> int:
        """The n-th number of the task."""
        self.state.asked.append(n)
        return self.numbers[n]

    @vf.tool
    async def add(self, n: int) -> str:
        """Adds to the total."""
        self.state.total += n
        if n < 0:
            raise ValueError("only from 0 on")
        return f"the total is {self.state.total}"


class SumsTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()
    fault: str = ""


class SumsTask(vf.Task[SumsData, SumsState, SumsTaskConfig]):
    @classmethod
    def toolsets(cls, config: SumsTaskConfig) -> list[vf.Toolset]:
        return [SumsToolset(config.tools)]

    async def setup(self, trace: vf.Trace) -> None:
        trace.info["began"] = True

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.state.total >= 1000

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return len(trace.tool_messages)

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        if self.config.fault == "raises":
            raise KeyError("no truth")
        if self.config.fault == "counts":
            return float(trace.num_output_tokens < 100)
        return float(trace.last_reply == str(sum(self.data.numbers)))

    @vf.reward(weight=0.25)
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        return {
            "used_tools": float(trace.state.total == sum(self.data.numbers)),
            "began": float(trace.info["began"]),
        }


class SumsConfig(vf.TasksetConfig):
    tasks: int = 3
    task: SumsTaskConfig = SumsTaskConfig()


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self) -> list[SumsTask]:
        rows = [[n, n + 1] for n in range(self.config.tasks)]
        return [
            SumsTask(
                SumsData(prompt=f"Add {row}.", system_prompt="Be brief.", numbers=row),
                self.config.task,
            )
            for row in rows
        ]
