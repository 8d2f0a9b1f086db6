"""The scorer of the server at an address."""

from rollq.errors import EngineFailure
from rollq_worker.audit.scorer import Scorer, ScoringConnection
from rollq_worker.audit.sglang import SGLangScorer
from rollq_worker.audit.vllm import VllmScorer
from rollq_worker.engine.detection import FoundServer
from rollq_worker.engine.vllm.server import VllmServer
from rollq_worker.remote.http_client import NoResponse


def open_scorer(url: str) -> Scorer:
    """Raises EngineFailure."""
    engine = ScoringConnection(url)
    try:
        server = FoundServer(engine.http).now
        if isinstance(server, VllmServer):
            return VllmScorer(engine, server)
        return SGLangScorer(engine)
    except NoResponse as e:
        engine.close()
        raise EngineFailure(f"{engine.url}: {e}") from e
    except EngineFailure:
        engine.close()
        raise
