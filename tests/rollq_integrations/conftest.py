"""The ledger of the tests of rollq."""

from tests.rollq.conftest import ledger, plain_environment

__all__ = ["ledger", "plain_environment"]
