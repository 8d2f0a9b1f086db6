"""The LoRA adapters of a replay engine, with SGLang's texts. Their folders are not read, and what
is said does not depend on them.

A server never forgets the folder of a name: a request loads an adapter again that was unloaded.
"""

from collections.abc import Mapping
from pathlib import Path

from rollq_worker.replay_engine.http_bodies import bad_value


class AdapterRefused(Exception):
    """An adapter is not loaded or unloaded."""

    def __init__(self, why: str, loaded: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.loaded = loaded


class Adapters:
    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        """Folders by name."""
        self._known: dict[str, str] = {}
        """The same of all that were ever loaded."""

    def load(self, name: str, path: str) -> Mapping[str, str]:
        """Raises AdapterRefused."""
        if name in self.loaded:
            raise AdapterRefused(
                f"Failed to load LoRA adapter {name} because it is already loaded", self.loaded
            )
        if not Path(path).exists():
            why = f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'."
            raise AdapterRefused(f"{why} Use `repo_type` argument if needed.", self.loaded)
        self.loaded[name] = self._known[name] = path
        return self.loaded

    def unload(self, name: str) -> Mapping[str, str]:
        """Raises AdapterRefused."""
        if name not in self.loaded:
            raise AdapterRefused(
                f"LoRA with name {name} does not exist. Loaded LoRAs: {self.loaded.keys()}"
            )
        del self.loaded[name]
        return self.loaded

    def use(self, name: str) -> None:
        """Raises HttpError for one that was never loaded."""
        if name not in self._known:
            why = f"Got LoRA adapter that has never been loaded: {name}"
            raise bad_value(f"{why}\nAll loaded adapters: {self._known.keys()}.")
        self.loaded.setdefault(name, self._known[name])
