"""Reads checkpoints and builds encoders whose configurations name code on the Hub, and prints how each ends. Run by
test_kernels.py in a process of its own, with a stub of the package `kernels` that transformers finds when it is
imported: `python kernel_requests.py FOLDER`.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from transformers.utils.import_utils import is_kernels_available

from nets.checkpoints import save_checkpoint
from ricnet.errors import RicnetError
from ricnet.nets.checkpoints import architecture_from_json
from ricnet.nets.pretrained import build, read_hf

KERNEL = "someone/kernel"
SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
QUANTIZED = {"quant_method": "mxfp4"}
ASKING: dict[str, dict[str, Any]] = {
    "attention": {"attn_implementation": KERNEL},
    "private name": {"_attn_implementation": KERNEL},
    "internal name": {"_attn_implementation_internal": KERNEL},
    "attention by part": {"attn_implementation": {"": KERNEL, "vision_config": KERNEL}},
    "flash attention": {"attn_implementation": "flash_attention_2"},
    "experts": {"experts_implementation": KERNEL, "_experts_implementation": "sonicmoe"},
    "quantization": {"quantization_config": QUANTIZED, "compression_config": QUANTIZED},
    "a part": {"vision_config": {"attn_implementation": KERNEL, "_attn_implementation": KERNEL}},
    "own code": {"auto_map": {"AutoModel": f"{KERNEL}--code.Model"}},
    "adapters": {},
}


def ends(work: Any) -> str:
    try:
        work()
    except RicnetError as error:
        return str(error)
    return "built"


def main(root: Path) -> None:
    assert is_kernels_available(), "the stub is not found"
    for kind, names in (("vit", ASKING.keys() - {"a part"}), ("clip", {"attention by part", "a part"})):
        whole = save_checkpoint(root / kind, kind)
        settings = json.loads((whole / "config.json").read_text())
        architecture = read_hf(whole).architecture.to_json()
        for name in sorted(names):
            asked = ASKING[name]
            folder = shutil.copytree(whole, root / f"{kind} {name}")
            parts = {key: settings.get(key, {}) | value for key, value in asked.items() if key == "vision_config"}
            (folder / "config.json").write_text(json.dumps(settings | asked | parts))
            if name == "adapters":
                adapter = {"peft_type": "LORA", "base_model_name_or_path": KERNEL}
                (folder / "adapter_config.json").write_text(json.dumps(adapter))
            print(json.dumps([kind, name, "checkpoint", ends(lambda folder=folder: read_hf(folder))]), flush=True)
            entry = architecture | {"network": architecture["network"] | asked}
            work = lambda entry=entry: build(architecture_from_json(entry, "config.json"))  # noqa: E731
            print(json.dumps([kind, name, "run", ends(work)]), flush=True)
    backbone = {"model_type": "dpt", "backbone": KERNEL, "use_pretrained_backbone": True, "backbone_config": None}
    for network in (backbone, {**SMALL, "model_type": "yoso"}, {**SMALL, "model_type": "rwkv"}):
        entry = architecture | {"network": network}
        work = lambda entry=entry: build(architecture_from_json(entry, "config.json"))  # noqa: E731
        try:
            ended = ends(work)
        except Exception as error:  # of transformers; `rebuild` makes a sentence of it
            ended = repr(error)
        print(json.dumps([network["model_type"], "by itself", "run", ended]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
