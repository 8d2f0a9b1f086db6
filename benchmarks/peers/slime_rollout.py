"""The task by slime's own rollout code: generate_and_rm_group, Sample and its HTTP client, with a
generate function as in its example retool (ids in, ids out; only observations are encoded). Needs
slime, whose checkout may stand in PYTHONPATH.
"""

import asyncio
import json
import re
import sys
from argparse import Namespace
from urllib.parse import urlsplit

import torch
from peers.lines import serve, setting
from peers.task import POLICY, TOOLS, TURNS, observation, opening
from slime.rollout import sglang_rollout
from slime.utils import http_utils
from slime.utils.types import Sample

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.S)
TAKEN = ("temperature", "top_p", "top_k", "max_new_tokens", "skip_special_tokens")
"""Sampling parameters that the replay engine knows, too."""
SEEN = (
    "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)


async def generate(args, sample, sampling_params):
    tokenizer = sglang_rollout.GenerateState(args).tokenizer
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    first = [{"role": "system", "content": POLICY}, {"role": "user", "content": sample.prompt}]
    prompt = tokenizer.apply_chat_template(
        first, tools=list(TOOLS), tokenize=False, add_generation_prompt=True
    )
    sample.tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    sample.response = ""
    sample.response_length = 0
    sample.loss_mask = []
    sampling = {name: sampling_params[name] for name in TAKEN}
    calls = 0
    params = {"sampling_params": sampling, "return_logprob": True}
    while True:
        output = await http_utils.post(url, {"input_ids": sample.tokens, **params})
        entries = output["meta_info"]["output_token_logprobs"]
        ids = [entry[1] for entry in entries]
        text = tokenizer.decode(ids)
        add(args, sample, text, ids, [entry[0] for entry in entries], output["meta_info"])
        found = CALL.search(text)
        if not found:
            break
        json.loads(found[1])
        calls += 1
        seen = SEEN.format(observation(sample.index, calls))
        add(args, sample, seen, tokenizer(seen, add_special_tokens=False)["input_ids"])
    sample.status = Sample.Status.COMPLETED
    sample.reward = float(calls == TURNS - 1)
    return sample


def add(args, sample, text, ids, log_probs=None, meta_info=None):
    trainable = {"log_probs": log_probs, "meta_info": meta_info} if log_probs else {}
    sample.append_response_tokens(args, tokens=ids, trainable=bool(log_probs), **trainable)
    sample.response += text


def arguments(told):
    engine = urlsplit(told["engine_url"])
    return Namespace(
        sglang_router_ip=engine.hostname,
        sglang_router_port=engine.port,
        hf_checkpoint=told["tokenizer"],
        sglang_server_concurrency=told["concurrency"],
        custom_generate_function_path="slime_rollout.generate",
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=1024,
        **dict.fromkeys(("rollout_num_engines", "sglang_dp_size", "rollout_seed"), 1),
        **dict.fromkeys(
            (
                "rollout_stop",
                "rollout_stop_token_ids",
                "rollout_sample_hook_path",
                "sglang_speculative_algorithm",
            )
        ),
        **dict.fromkeys(
            (
                "rollout_skip_special_tokens",
                "partial_rollout",
                "mask_offpolicy_in_partial_rollout",
                "group_rm",
                "use_distributed_post",
                "ci_test",
                "use_rollout_routing_replay",
            ),
            False,
        ),
        n_samples_per_prompt=1,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    args = arguments(setting())
    sys.modules["slime_rollout"] = sys.modules["__main__"]
    with asyncio.Runner() as runner:

        async def start():
            http_utils.init_http_client(args)
            return sglang_rollout.GenerateState(args)

        state = runner.run(start())

        async def play(indices):
            groups = [[Sample(index=index, prompt=opening(index))] for index in indices]
            params = dict(state.sampling_params)
            played = await asyncio.gather(
                *(sglang_rollout.generate_and_rm_group(args, group, params) for group in groups)
            )
            return [sample.reward for group in played for sample in group]

        serve(lambda indices: runner.run(play(indices)))
