"""Every prompt of these tests is also written as for a real engine, which keeps what it wrote of an
array before.
"""

import pytest

from rollq_worker.engine.exchange.prompts import PromptWriter, write_ids
from rollq_worker.fakes import FakeEngine
from rollq_worker.protocols import Generated, SampleRequest


@pytest.fixture(autouse=True)
def _arrays_only_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that was changed in the middle would be sent as it was before."""
    generate, prompts = FakeEngine.generate, PromptWriter()

    def written(self: FakeEngine, request: SampleRequest) -> Generated:
        sent = b"".join(prompts.write(request.ids).pieces)
        assert sent == b"".join(write_ids(request.ids).pieces), (
            "the array that was given to generate did not only grow"
        )
        return generate(self, request)

    monkeypatch.setattr(FakeEngine, "generate", written)
