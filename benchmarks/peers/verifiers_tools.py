"""The tools of the task as verifiers serves them: a process for each rollout runs this file."""

import inspect

import verifiers.v1 as vf
from peers.task import TOOLS, observation


class PeersTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    async def setup_task(self, task):
        self.index = task.index
        self.calls = 0

    def register(self, mcp):
        for tool in TOOLS:
            function = tool["function"]
            mcp.add_tool(
                self.tool(function["parameters"]["properties"]),
                name=function["name"],
                description=function.get("description"),
            )

    def tool(self, names):
        async def answer(**arguments):
            self.calls += 1
            return observation(self.index, self.calls)

        by_name = inspect.Parameter.KEYWORD_ONLY
        answer.__signature__ = inspect.Signature(
            [inspect.Parameter(name, by_name, annotation=str) for name in names]
        )
        return answer


if __name__ == "__main__":
    PeersTools.run()
