"""What `import rollq` loads: a trainer's process gets redis and msgpack, nothing heavier."""

import subprocess
import sys


def test_importing_rollq_loads_nothing_heavy():
    heavy = "celery kombu rollq_worker requests numpy transformers tokenizers rich".split()
    code = f"import sys, rollq; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
