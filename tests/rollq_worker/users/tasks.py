"""The task that simulated users have in these tests."""

from rollq.env import STOP_MARKER, Task

TASK = Task(
    id="t/0",
    hash="0",
    instruction="You are Ada Abara. You want to cancel order S-1. You ordered it by mistake. You "
    "want the {refund}.",
    opening="Hello, Ada here.",
    replies=("It is S-1.", "Yes.", f"Thank you. {STOP_MARKER}"),
    moves=(),
    outputs=("1299.50",),
)
