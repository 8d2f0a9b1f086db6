"""rescore.py MODEL LINES VERSION: scores the tokens of a weight version with transformers, in
exported trajectories that were sampled at temperature 1.

Prints {"tokens", "mean", "max", "shifted"} as JSON: the distance of their logprobs to its own, and
its mean if they were one token late. Run it with an interpreter that has torch and transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main(model_folder: str, lines: Path, version: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    apart: list[float] = []
    shifted: list[float] = []
    for line in map(json.loads, lines.read_text().splitlines()):
        ids = torch.tensor([line["tokens"]])
        with torch.no_grad():
            scores = model(ids).logits[0, :-1].log_softmax(-1)
        scored = [0.0, *scores.gather(1, ids[0, 1:, None])[:, 0].tolist()]
        sampled = [at for at, name in enumerate(line["versions"]) if name == version]
        apart += [abs(line["logprobs"][at] - scored[at]) for at in sampled]
        late = zip(sampled[1:], sampled[:-1], strict=True)
        shifted += [abs(line["logprobs"][before] - scored[at]) for at, before in late]
    numbers = {"tokens": len(apart), "mean": sum(apart) / len(apart), "max": max(apart)}
    print(json.dumps({**numbers, "shifted": sum(shifted) / len(shifted)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
