"""other_weights.py MODEL OUT: a model like that in MODEL, with noise in each of its tensors.

Run it with an interpreter that has torch.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FILE = "model.safetensors"


def main(model: Path, out: Path) -> None:
    torch.manual_seed(1)
    shutil.copytree(model, out, ignore=lambda *_: [FILE], dirs_exist_ok=True)
    tensors = load_file(model / FILE)
    noisy = {
        name: (tensor * (1 + 0.3 * torch.randn(tensor.shape))).to(tensor.dtype)
        for name, tensor in tensors.items()
    }
    save_file(noisy, out / FILE, metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
