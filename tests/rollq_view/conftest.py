"""A ledger of run `r` on the real Redis, and commands run in this process, as the tests of `rollq`
have them.
"""

from tests.rollq.commands.conftest import fails
from tests.rollq.conftest import ledger, plain_environment

__all__ = ["fails", "ledger", "plain_environment"]
