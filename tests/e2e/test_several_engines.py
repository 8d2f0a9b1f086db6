"""A worker whose engines come and go while it plays."""

import requests

from tests.e2e.stack import Stack, check_all_delivered, submit_singles
from tests.recorder import recording

JOBS = 120


def test_engines_are_added_and_removed_in_mid_run(stack: Stack) -> None:
    addresses = []
    for _ in range(2):
        stack.engine("--latency", "0.3")
        addresses.append(stack.engine_url)
    engines = stack.folder / "engines.txt"
    with (
        recording(addresses[0], stack.folder / "first.jsonl") as first,
        recording(addresses[1], stack.folder / "second.jsonl") as second,
    ):
        engines.write_text(f"{first.url}\n")
        worker = stack.worker(8, engine_url=f"file:{engines}")
        submit_singles(stack, "several", JOBS)
        stack.wait(lambda: len(first.calls()) > 10, 150, "replies of the first engine")
        assert not second.calls()

        engines.write_text(f"{first.url}\n{second.url}\n")
        stack.wait(second.calls, 150, "replies of the second engine")

        engines.write_text(f"{second.url}\n")
        last = [-1, 0]

        def only_the_second() -> bool:
            """The first engine got nothing while the second answered eight times."""
            if len(first.calls()) != last[0]:
                last[:] = [len(first.calls()), len(second.calls())]
            return len(second.calls()) >= last[1] + 8

        stack.wait(only_the_second, 150, "the end of the first engine's requests")
        stats = check_all_delivered(stack, "several", JOBS)
        worker.terminate()  # before its engines
        assert worker.wait(60) == 0
    assert not stats["failures"] and not stats["redelivered"], stack.logs()


SHAPE = """[engines.shape]
step_s = {step_s}
prefill_token_s = 1e-6
running_s = 0
kv_token_s = 0
kv_tokens = 1000000
max_running = {max_running}
chunk_tokens = 8192
"""


def test_a_slow_engine_gets_fewer_episodes(stack: Stack) -> None:
    """Both get their share at first. Then the queue of the slow one moves to the other engine."""
    addresses = []
    for name, step_s, max_running in (("slow", 0.1, 2), ("fast", 0.01, 64)):
        shape = stack.folder / f"{name}.toml"
        shape.write_text(SHAPE.format(step_s=step_s, max_running=max_running))
        stack.engine("--shape", str(shape))
        addresses.append(stack.engine_url)
    slow, fast = addresses

    def requests_at(url: str) -> int:
        load = requests.get(url + "/v1/loads", timeout=60).json()["loads"][0]
        return int(load["num_running_reqs"] + load["num_waiting_reqs"])

    submit_singles(stack, "slow", 120, size=4)
    engines = stack.folder / "engines.txt"
    engines.write_text("\n".join(addresses))
    worker = stack.worker(16, engine_url=f"file:{engines}")
    stack.wait(lambda: requests_at(slow) >= 6, 150, "a queue at the slow engine")
    stack.wait(lambda: requests_at(slow) <= 3 and requests_at(fast) >= 10, 150, "fewer episodes there")
    stats = stack.stats("slow")
    assert stats["queued"] and not stats["failures"] and not stats["redelivered"], stack.logs()
    worker.terminate()  # before its engines
    assert worker.wait(60) == 0
