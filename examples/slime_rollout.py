"""Drives rollq's adapter as slime's train.py does, without GPUs: new weights, rollout, checkpoint
(docs/slime.md).

It needs the first three terminals of docs/quickstart.md, and a run. Where slime is installed, its
own Sample is used; elsewhere the stand-in beside this file. slime's router and its training are
played here.
"""

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

from rollq.weights import Fleet
from rollq_integrations import slime

sys.path.append(
    str(Path(__file__).parent / "slime_stand_in")
)  # at the end: slime itself comes first


class Router(BaseHTTPRequestHandler):
    """Answers rollq's question to slime's router: which engines there are."""

    engines: tuple[str, ...] = ()

    def do_GET(self):
        body = json.dumps({"workers": [{"url": url} for url in self.engines]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def slime_arguments(flags, router):
    """The arguments of slime that the adapter reads, with slime's defaults."""
    return SimpleNamespace(
        rollq_run=flags.run,
        rollq_redis_url=flags.redis,
        rollout_function_path="rollq_integrations.slime.generate_rollout",
        eval_function_path="rollq_integrations.slime.generate_rollout",
        eval_datasets=[],
        rollout_batch_size=flags.groups,
        over_sampling_batch_size=flags.groups,
        n_samples_per_prompt=flags.size,
        rollout_global_dataset=True,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_temperature=1.0,
        reward_key=None,
        dynamic_sampling_filter_path=flags.filter,
        rollout_sample_filter_path=None,
        custom_reward_post_process_path="rollq_integrations.slime.reward_post_process",
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=True,
        use_rollout_routing_replay=False,
        release_train=False,
        update_weights_interval=1,
        update_weight_start_version=flags.start,
        sglang_router_ip=router.server_address[0],
        sglang_router_port=router.server_address[1],
    )


def train(flags, args):
    source = slime.DataSource(args)
    source.load(flags.start - 1)
    weights = Fleet([flags.engine])
    for rollout in range(flags.start, flags.rollouts):
        weights.update("step", str(rollout + 1))  # slime's versions: 1 before its first rollout
        output = slime.generate_rollout(args, rollout, source)
        samples = [sample for group in output.samples for sample in group]
        raw, rewards = slime.reward_post_process(args, samples)
        if flags.out:
            with flags.out.open("a") as out:
                for sample, reward in zip(samples, rewards, strict=True):
                    row = {
                        "rollout": rollout,
                        "job": sample.metadata["job"],
                        "tokens": sample.tokens,
                        "reward": reward,
                        "group": sample.group_index,
                        "index": sample.index,
                    }
                    out.write(json.dumps(row) + "\n")
        print(
            f"rollout {rollout}: {len(output.samples)} groups, {len(samples)} samples, "
            f"mean reward {mean(raw):.2f},"
            f" staleness {output.metrics.get('rollout/rollq/staleness_max', 'unknown')}",
            flush=True,
        )
        if rollout in flags.save:
            source.save(rollout)


def mean(values):
    return sum(values) / len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--engine", default="http://127.0.0.1:30000")
    parser.add_argument("--run", required=True)
    parser.add_argument("--groups", type=int, default=4, help="slime's --rollout-batch-size")
    parser.add_argument("--size", type=int, default=4, help="slime's --n-samples-per-prompt")
    parser.add_argument("--rollouts", type=int, default=4, help="slime's --num-rollout")
    parser.add_argument(
        "--start", type=int, default=0, help="the first rollout after the checkpoint"
    )
    parser.add_argument(
        "--save", type=int, nargs="*", default=[], help="rollouts with a checkpoint"
    )
    parser.add_argument("--filter", help="slime's --dynamic-sampling-filter-path")
    parser.add_argument("--out", type=Path, help="write a line for each sample")
    flags = parser.parse_args()
    Router.engines = (flags.engine,)
    with ThreadingHTTPServer(("127.0.0.1", 0), Router) as router:
        threading.Thread(target=router.serve_forever, daemon=True).start()
        train(flags, slime_arguments(flags, router))
        router.shutdown()


if __name__ == "__main__":
    main()
