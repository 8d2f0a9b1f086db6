"""The bare loop (bare_loop.py) on the task of the peers."""

from concurrent.futures import ThreadPoolExecutor

from bare_loop import Loop
from peers.lines import serve, setting

from rollq_worker.environments.files import add_file

if __name__ == "__main__":
    told = setting()
    loop = Loop({**told, "env": add_file(told["env"])})
    with ThreadPoolExecutor(told["concurrency"]) as threads:
        serve(lambda indices: [one["reward"] for one in threads.map(loop.rollout, indices)])
