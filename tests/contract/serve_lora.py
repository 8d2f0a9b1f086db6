"""serve_lora.py FLAGS: `python -m sglang.launch_server FLAGS` with LoRA adapters on a machine
without CUDA.

SGLang locks the memory of adapters by a call of CUDA, for copies to the GPU, even where there is
none. Nothing else is changed. Processes that the server spawns import this file too.
"""

import sys

import torch
from sglang.launch_server import run_server
from sglang.srt.server_args import prepare_server_args


def _not_locked(function):
    def made(*args, pin_memory=False, **options):
        return function(*args, **options)

    return made


torch.Tensor.pin_memory = lambda self, *args: self
for name in ("empty", "empty_like", "zeros", "zeros_like", "tensor"):
    setattr(torch, name, _not_locked(getattr(torch, name)))

if __name__ == "__main__":
    # Not through runpy, which would make processes import SGLang's module in place of this file.
    run_server(prepare_server_args(sys.argv[1:]))
