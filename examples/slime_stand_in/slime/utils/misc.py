"""slime's way to name a function."""

import importlib
from collections.abc import Callable
from typing import Any


def load_function(path: str) -> Callable[..., Any]:
    """`package.module.function`."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
