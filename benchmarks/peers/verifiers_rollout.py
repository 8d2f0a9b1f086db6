"""The task as a taskset of verifiers, played by its null harness. Each rollout has a process for
its agent, and another one that serves its tools by MCP. Needs verifiers 0.4, and uv on PATH.
"""

import asyncio
import os

import verifiers.v1 as vf
from peers.lines import serve, setting
from peers.task import LAST, POLICY, TASKS, TURNS, opening
from peers.verifiers_tools import PeersTools
from verifiers.v1.harnesses.null import NullHarnessConfig

__all__ = ["PeersTaskset"]


class PeersData(vf.TaskData):
    index: int


class PeersTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class PeersTask(vf.Task[PeersData, vf.State, PeersTaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [PeersTools(config.tools)]

    @vf.reward
    async def done(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == LAST and len(trace.tool_messages) == TURNS - 1)


class PeersConfig(vf.TasksetConfig):
    task: PeersTaskConfig = PeersTaskConfig()


class PeersTaskset(vf.Taskset[PeersTask, PeersConfig]):
    def load(self):
        return [
            PeersTask(
                PeersData(prompt=opening(index), system_prompt=POLICY, index=index),
                self.config.task,
            )
            for index in range(TASKS)
        ]


async def play(env, context, told, indices):
    """The rewards of these tasks."""
    tasks = list(env.taskset)
    at_once = asyncio.Semaphore(told["concurrency"])
    async with env.serving():
        slots = [slot for index in indices for slot in env.slots(tasks[index], 1)]
        episodes = await asyncio.gather(*(env.run_slot(slot, context, at_once) for slot in slots))
    return [episode.traces[0].reward for episode in episodes]


if __name__ == "__main__":
    told = setting()
    os.environ.setdefault("PEER_KEY", "x")
    config = vf.SingleAgentEnvConfig(
        taskset=PeersConfig(id="verifiers_rollout"),
        agent=vf.AgentConfig(harness=NullHarnessConfig(id="null"), runtime=vf.SubprocessConfig()),
    )
    context = vf.ModelContext(
        client=vf.EvalClientConfig(base_url=told["chat_url"], api_key_var="PEER_KEY"), model="peer"
    )
    env = vf.SingleAgentEnv(config)
    with asyncio.Runner() as runner:
        serve(lambda indices: runner.run(play(env, context, told, indices)))
