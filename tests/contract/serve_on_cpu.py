"""serve_on_cpu.py FLAGS: `python -m sglang.launch_server FLAGS` on a machine without CUDA.

LoRA adapters, routed experts and images work, too.

SGLang locks memory by calls of CUDA, for copies to and from the GPU, even where there is none. Its
module for Qwen-VL images imports Qwen3.5's model, which looks up four operators of sgl_kernel that
its build for CPUs lacks and that Qwen2.5-VL and Qwen3-VL never call. Processes that the server
spawns import this file too.
"""

import sys

import torch
from sglang.launch_server import run_server
from sglang.srt.mem_cache.pool_host import common
from sglang.srt.server_args import prepare_server_args

OPERATORS = """
    fused_sigmoid_mul_cpu fused_qk_gemma_rmsnorm_cpu fused_qk_gemma_rmsnorm_with_gate_cpu
    fused_qkvzba_split_reshape_cat_contiguous_cpu
""".split()


def _not_locked(function):
    def made(*args, pin_memory=False, **options):
        return function(*args, **options)

    return made


torch.Tensor.pin_memory = lambda self, *args: self
for name in ("empty", "empty_like", "zeros", "zeros_like", "tensor"):
    setattr(torch, name, _not_locked(getattr(torch, name)))
common._cuda_host_register = lambda *args, **options: None
for operator in OPERATORS:
    torch.library.define(f"sgl_kernel::{operator}", "(Tensor x) -> ()")

if __name__ == "__main__":
    # Not through runpy, which would make processes import SGLang's module in place of this file.
    run_server(prepare_server_args(sys.argv[1:]))
