"""Runs sessions of rollq's agent loop as verl's workers do, without GPUs (docs/verl.md).

It needs the first three terminals of docs/quickstart.md. Where verl is installed, its own classes
are used; elsewhere the stand-in beside this file. The same line again finds the episodes that were
played.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER / "verl_stand_in"))  # at the end: verl itself comes first

from rollq_integrations.verl import RollqAgentLoop  # noqa: E402

SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "repetition_penalty": 1.0,
    "logprobs": True,
}


async def run_prompt(flags, uid, task):
    """The n sessions of one prompt. verl makes an agent loop for each."""
    rollout = SimpleNamespace(prompt_length=4096, response_length=8192)
    sampler = SimpleNamespace(max_off_policy_threshold=8)
    trainer = SimpleNamespace(save_freq=20, v1=SimpleNamespace(sampler=sampler))
    config = SimpleNamespace(trainer=trainer, actor_rollout_ref=SimpleNamespace(rollout=rollout))
    fields = {"uid": uid, "global_steps": 1, "extra_info": {"rollq": {"task": task}}}
    sessions = []
    for session_id in range(flags.n):
        loop = RollqAgentLoop(
            SimpleNamespace(config=config),
            None,
            flags.tokenizer,
            None,
            None,
            SimpleNamespace(config={}),
            run=flags.run,
            redis_url=flags.redis,
            job={"env": "shop", "budget": {"max_turns": 20}},
        )
        sessions.append(loop.run(SAMPLING, session_id=session_id, **fields))
    return await asyncio.gather(*sessions)


async def train(flags):
    began = time.monotonic()
    prompts = [run_prompt(flags, f"prompt-{task}", task) for task in range(flags.prompts)]
    for task, outputs in enumerate(await asyncio.gather(*prompts)):
        rewards = [output.reward_score for output in outputs]
        trained = sum(sum(output.response_mask) for output in outputs)
        print(
            f"prompt {task}: rewards {rewards}, {trained} tokens to train, "
            f"{outputs[0].num_turns} turns in the first"
        )
    print(f"{flags.prompts * flags.n} sessions in {time.monotonic() - began:.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--run", required=True)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--n", type=int, default=4, help="verl's actor_rollout_ref.rollout.n")
    flags = parser.parse_args()
    flags.tokenizer = tokenizer()
    asyncio.run(train(flags))


def tokenizer():
    """verl's base class wants one; rollq's workers have their own. The stand-in needs none, and
    transformers comes with verl.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return None

    from rollq_worker.tokens.tokenizer import BUNDLED

    return AutoTokenizer.from_pretrained(str(BUNDLED))


if __name__ == "__main__":
    main()
