"""serve_vision.py FLAGS: `python -m sglang.launch_server FLAGS` on a CPU without sgl_kernel's compiled operators.

SGLang's module for Qwen-VL images imports Qwen3.5's model, which looks four operators up as it is imported. Qwen2.5-VL
and Qwen3-VL never call them, so declaring them is enough.
"""

import runpy

import torch

OPERATORS = """
    fused_sigmoid_mul_cpu fused_qk_gemma_rmsnorm_cpu fused_qk_gemma_rmsnorm_with_gate_cpu
    fused_qkvzba_split_reshape_cat_contiguous_cpu
""".split()

if __name__ == "__main__":
    for operator in OPERATORS:
        torch.library.define(f"sgl_kernel::{operator}", "(Tensor x) -> ()")
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
