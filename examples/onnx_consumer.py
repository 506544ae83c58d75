"""Classify images with an exported model. Needs numpy, onnxruntime and pillow; neither torch nor ricnet.

ric export runs/photos-ric-seed0 --out model.onnx
python examples/onnx_consumer.py model.onnx cat.jpg dog.jpg
"""

import argparse
import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="file that ric export wrote")
parser.add_argument("paths", metavar="image", nargs="+")
asked = parser.parse_args()
model, paths = asked.model, asked.paths

session = onnxruntime.InferenceSession(model)
about = session.get_modelmeta().custom_metadata_map
names, shape = json.loads(about["class_names"]), json.loads(about["input_shape"])
if len(shape) != 3:
    sys.exit(f"{model} reads rows of {shape[0]} numbers, not images; its metadata says how columns become numbers.")
channels, height, width = shape


def read(path: str) -> np.ndarray:
    """Upright, scaled and cropped as in training (lay transparent images on white first); the model does the rest."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


probabilities, steps, *_ = session.run(None, {"input": np.stack([read(path) for path in paths])})
for path, belief, taken in zip(paths, probabilities, steps, strict=True):
    print(f"{path}: {names[belief.argmax()]} ({belief.max():.1%}, steps: {taken})")
