"""The complete loop of docs/trainer.md runs as printed, but for addresses; and again after it was
killed.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rollq import Client
from rollq_worker.tokens.tokenizer import load_tokenizer
from tests.e2e.stack import Stack

PAGE = Path(__file__).resolve().parents[2] / "docs/trainer.md"
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


class Killed(BaseException):
    """The trainer ends where it stands."""


class Trainer:
    """What the page leaves to its reader, and a kill at one of its checkpoints."""

    def __init__(self, folder: Path, kill_at: int | None = None) -> None:
        self.folder, self.kill_at = folder, kill_at

    def restore(self) -> tuple[Any, Any, int | None]:
        torch.manual_seed(0)
        vocabulary = load_tokenizer(None).vocab_size
        policy = Qwen2ForCausalLM(
            Qwen2Config(vocab_size=vocabulary, num_key_value_heads=1, **SHAPE)
        )
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
        done = None
        for checkpoint in sorted(self.folder.glob("*/all.pt"))[-1:]:
            state = torch.load(checkpoint)
            policy.load_state_dict(state["policy"])
            optimizer.load_state_dict(state["optimizer"])
            done = state["step"] - 1 if state["step"] else None
        return policy, optimizer, done

    def save(self, policy: Any, optimizer: Any, step: int) -> str:
        if step == self.kill_at:
            raise Killed
        folder = self.folder / str(step)
        folder.mkdir(parents=True, exist_ok=True)
        state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, folder / "all.pt")
        return str(folder)


@pytest.mark.timeout(600)  # torch computes on as many threads as there are cores
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # the thread that was killed, too
def test_the_complete_loop_trains_each_group_once_through_a_kill(
    stack: Stack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [loop] = [
        text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        if "Fleet(" in text
    ]
    stack.engine("--mistakes", "0.3")
    stack.worker(16)
    address = "http://127.0.0.1:30000"
    assert address in loop
    loop = loop.replace(address, stack.engine_url)
    monkeypatch.setenv("ROLLQ_REDIS_URL", stack.redis_url)
    first = Trainer(tmp_path, kill_at=2)
    with pytest.raises(Killed):
        exec(loop, {"restore": first.restore, "save": first.save})
    second = Trainer(tmp_path)
    exec(loop, {"restore": second.restore, "save": second.save})

    printed = re.findall(r"^step (\d): loss .*max=(-?\d+)", capsys.readouterr().out, re.M)
    assert [step for step, _ in printed] == ["0", "1", "1", "2"]
    assert all(int(staleness) <= 1 for _, staleness in printed)
    with Client(stack.redis_url, run="shop-loop") as client:
        stats = client.stats()
        assert (stats["groups_acked"], stats["delivered"]) == (12, 48)
        published = client.published()
        assert published and published.step == 3
