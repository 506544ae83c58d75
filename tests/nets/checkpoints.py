"""Tiny checkpoints with random weights, saved as transformers saves them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

PROCESSOR = {"size": {"shortest_edge": 16}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.5, 0.2]}


def save_checkpoint(folder: Path, kind: str = "resnet", processor: dict[str, Any] | None = None) -> Path:
    import transformers

    sizes: dict[str, dict[str, Any]] = {
        "resnet": {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [2, 1], "layer_type": "basic"},
        "convnext": {"hidden_sizes": [8, 12], "depths": [2, 1], "num_stages": 2},
        "swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 2, "window_size": 2},
        "vit": {**_transformer(), "image_size": 16, "patch_size": 8},
        "dinov2": {**_transformer(), "image_size": 16, "patch_size": 8},
        "clip": {"vision_config": {**_transformer(), "image_size": 16, "patch_size": 8}, "projection_dim": 8},
        "bert": {**_transformer(), "vocab_size": 30, "max_position_embeddings": 16},
        "roberta": {**_transformer(), "vocab_size": 30, "max_position_embeddings": 16},
        "distilbert": {"dim": 8, "n_layers": 5, "n_heads": 2, "hidden_dim": 16, "vocab_size": 30},
    }
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**sizes[kind])
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    if "vocab_size" not in sizes[kind]:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor or PROCESSOR))
    return folder


def _transformer() -> dict[str, int]:
    return {"hidden_size": 8, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 16}


def require_timm() -> Any:
    try:
        import timm
    except Exception as error:  # a torchvision of another torch cannot be imported, whatever it raises
        pytest.skip(f"timm cannot be imported here: {error} (ricnet[timm])")
    return timm
