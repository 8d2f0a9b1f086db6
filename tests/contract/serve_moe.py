"""serve_moe.py FLAGS: `python -m sglang.launch_server FLAGS` with routed experts on a machine
without CUDA.

SGLang locks the buffer of routed experts in memory by a call of CUDA, for its copies from the GPU,
even where there is none. Nothing else is changed. Processes that the server spawns import this file
too.
"""

import sys

from sglang.launch_server import run_server
from sglang.srt.mem_cache.pool_host import common
from sglang.srt.server_args import prepare_server_args


def _not_locked(*args: object, **options: object) -> None:
    pass


common._cuda_host_register = _not_locked

if __name__ == "__main__":
    # Not through runpy, which would make processes import SGLang's module in place of this file.
    run_server(prepare_server_args(sys.argv[1:]))
