"""New weights for engines, as trainers load them: `Fleet`. docs/weights.md."""

from rollq.weights.discovery import router_engines
from rollq.weights.engine_control import PauseMode
from rollq.weights.fleet import EngineUpdate, Fleet

__all__ = ["EngineUpdate", "Fleet", "PauseMode", "router_engines"]
