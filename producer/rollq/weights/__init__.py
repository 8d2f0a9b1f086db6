"""New weights for engines, as trainers load them: `Fleet`. docs/weights.md."""

from rollq.weights.engine_control import PauseMode, router_engines
from rollq.weights.fleet import EngineUpdate, Fleet

__all__ = ["EngineUpdate", "Fleet", "PauseMode", "router_engines"]
