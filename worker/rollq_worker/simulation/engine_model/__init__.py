"""How long an engine takes, on a simulated clock: batches, KV memory, prefix cache and chunked prefill as in SGLang."""

from rollq_worker.simulation.engine_model.model import EngineModel
from rollq_worker.simulation.engine_model.values import EngineShape, Finished, Load, Progress, Request

__all__ = ["EngineModel", "EngineShape", "Finished", "Load", "Progress", "Request"]
