"""Harbor's task folders as an environment: `--env harbor:DIR`."""

from rollq_integrations.harbor.domain import load

__all__ = ["load"]
