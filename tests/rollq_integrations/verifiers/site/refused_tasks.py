"""A taskset whose tasks need what rollq does not have; its configuration says what."""

import verifiers.v1 as vf
from pydantic import Field

__all__ = ["RefusedTaskset"]


class Plain(vf.Task[vf.TaskData]):
    @vf.reward
    async def one(self) -> float:
        return 1.0


class Container(Plain):
    NEEDS_CONTAINER = True


class Intercepts(Plain):
    @vf.intercept
    async def rewrite(self, request: vf.Request) -> None: ...


class ScoresRuntime(Plain):
    @vf.reward
    async def look(self, runtime: vf.Runtime) -> float:
        return 1.0


class SetsUpRuntime(Plain):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None: ...


class StopsRequests(Plain):
    @vf.stop
    async def too_long(self, request: vf.Request) -> bool:
        return False


class Tools(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def nothing(self) -> str:
        """Does nothing."""
        return ""


class ToolsElsewhere(Plain):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Tools(vf.ToolsetConfig(url="http://127.0.0.1:1/mcp"))]


class SameTools(Plain):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Tools(vf.ToolsetConfig()), Tools(vf.ToolsetConfig())]


class RefusedConfig(vf.TasksetConfig):
    kind: str = "Plain"
    data: dict = Field(default={"prompt": "Say hello."})


class RefusedTaskset(vf.Taskset[Plain, RefusedConfig]):
    def load(self) -> list[Plain]:
        if self.config.kind == "none":
            return []
        kind = Plain if self.config.kind == "shared" else globals()[self.config.kind]
        return [kind(vf.TaskData(**self.config.data))]

    @classmethod
    def toolsets(cls, config: RefusedConfig) -> list[vf.Toolset]:
        return [Tools(vf.SharedToolsetConfig())] if config.kind == "shared" else []
