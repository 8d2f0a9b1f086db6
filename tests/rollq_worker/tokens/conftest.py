"""Real chat templates and golden encodings; the tests that need them are skipped where there is no
shared folder.
"""

from pathlib import Path

import pytest

from tests.rollq_worker.tokens.models import RealTemplates


@pytest.fixture(scope="session")
def real(shared: Path) -> RealTemplates:
    return RealTemplates(shared / "data" / "chat_templates")


@pytest.fixture(scope="session")
def golden_encodings(shared: Path) -> list[tuple[str, list[int]]]:
    """Texts with the ids that llama.cpp's tests give for them in Qwen's vocabulary."""
    golden = shared / "data" / "qwen" / "golden_encodings"
    texts = golden.with_suffix(".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    rows = golden.with_suffix(".out").read_text().split("\n")[: len(texts)]
    return [(text, [int(id) for id in row.split()]) for text, row in zip(texts, rows, strict=True)]
