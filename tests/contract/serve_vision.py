"""serve_vision.py FLAGS: `python -m sglang.launch_server FLAGS` on a CPU without sgl_kernel's
compiled operators.

SGLang's module for Qwen-VL images imports Qwen3.5's model, which looks four operators up as it is
imported. Qwen2.5-VL and Qwen3-VL never call them, so declaring them is enough. Processes that the
server spawns import this file too.
"""

import sys

import torch
from sglang.launch_server import run_server
from sglang.srt.server_args import prepare_server_args

OPERATORS = """
    fused_sigmoid_mul_cpu fused_qk_gemma_rmsnorm_cpu fused_qk_gemma_rmsnorm_with_gate_cpu
    fused_qkvzba_split_reshape_cat_contiguous_cpu
""".split()

for operator in OPERATORS:
    torch.library.define(f"sgl_kernel::{operator}", "(Tensor x) -> ()")

if __name__ == "__main__":
    # Not through runpy, which would make processes import SGLang's module in place of this file.
    run_server(prepare_server_args(sys.argv[1:]))
