"""Scripted engines that come and go, and a pool of them."""

from contextlib import ExitStack

from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.pool import EnginePool
from tests.conftest import free_port
from tests.rollq_worker.engine.clients import generate
from tests.rollq_worker.engine.engine_servers import ScriptedEngine, scripted_engine

GROUPS = [f"run/g{number}" for number in range(40)]


class Fleet:
    """Scripted engines, and a pool of them that looks at them only when a test tells it to."""

    def __init__(self, size: int) -> None:
        self.stack = ExitStack()
        self.ports = [free_port() for _ in range(size)]
        self.running: dict[int, ScriptedEngine] = {}
        self.contexts: dict[int, ExitStack] = {}
        for port in self.ports:
            self.start(port)
        self.pool = EnginePool([self.url(port) for port in self.ports], vocab_size=1000)

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def start(self, port: int) -> ScriptedEngine:
        self.contexts[port] = ExitStack()
        engine = self.contexts[port].enter_context(
            scripted_engine(port=port, ready=(200, {}), health=(200, b""))
        )
        self.running[port] = engine
        return engine

    def stop(self, port: int) -> None:
        self.running.pop(port)
        self.contexts.pop(port).close()

    def home(self, group: str) -> ScriptedEngine:
        """Where a new episode of the group goes now."""
        before = {port: len(engine.bodies()) for port, engine in self.running.items()}
        generate(self.pool, f"{group}/new")
        self.pool.end(f"{group}/new")
        [found] = [
            engine for port, engine in self.running.items() if len(engine.bodies()) > before[port]
        ]
        return found

    def client_of(self, home: ScriptedEngine) -> EngineClient:
        """The pool's client of that engine."""
        return next(client for client in self.pool.engines if client.url == home.url)

    def urls_beside(self, home: ScriptedEngine) -> list[str]:
        return [client.url for client in self.pool.engines if client.url != home.url]

    def homes(self) -> dict[str, int]:
        return {group: self.home(group).port for group in GROUPS}

    def group_of(self, port: int) -> str:
        """A group whose engine is the one at that port."""
        return next(
            group for group in (f"run/x{n}" for n in range(1000)) if self.home(group).port == port
        )

    def close(self) -> None:
        self.pool.close()
        for context in self.contexts.values():
            context.close()
