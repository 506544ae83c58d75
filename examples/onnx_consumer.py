"""Classify images or texts with an exported model, without torch and ricnet.

    ric export runs/photos-ric-on-policy-seed0 --out model.onnx
    python examples/onnx_consumer.py model.onnx cat.jpg dog.jpg
    python examples/onnx_consumer.py reviews.onnx "a lovely film" "rather dull"

Needs numpy and onnxruntime, for images also pillow, for texts of a pretrained encoder also tokenizers.
"""

import argparse
import json
import re
import sys
import zlib
from itertools import pairwise

import numpy as np
import onnxruntime

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="file that ric export wrote")
parser.add_argument("inputs", metavar="input", nargs="+", help="an image file, or a text")
asked = parser.parse_args()

session = onnxruntime.InferenceSession(asked.model)
about = session.get_modelmeta().custom_metadata_map
names, shape = json.loads(about["class_names"]), json.loads(about["input_shape"])
columns = json.loads(about["columns"])["inputs"] if "columns" in about else []
rule = json.loads(about.get("prediction_sets", "{}")).get("0.95")


def read_image(path: str) -> np.ndarray:
    """Upright, scaled and cropped as in training; the model normalises. Put transparent images on white first."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    image = ImageOps.exif_transpose(Image.open(path)).convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def read_text(text: str) -> list[int]:
    """Token ids, by the rule in the metadata under token_ids."""
    (length,), own = shape, columns[0]["tokenizer"]
    if own is None:
        words = [word.lower() for word in re.findall(r"\w+|[^\w\s]", text)]
        tokens = [token for word, after in pairwise([*words, ""]) for token in (word, f"{word} {after}")][:-1]
        ids = [zlib.crc32(token.encode()) & 0x7FFFFFFF or 1 for token in tokens]
        return (ids + [0] * length)[:length]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(own["content"])
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=own["pad"])
    return tokenizer.encode(text).ids


if len(shape) == 3:
    read, kind = read_image, np.uint8
elif columns and columns[0]["kind"] == "text":
    read, kind = read_text, np.int32
else:
    how = "; its metadata says under columns how they are encoded" if columns else ""
    sys.exit(f"{asked.model} reads rows of {shape[0]} numbers, neither images nor texts{how}.")

found = []
for given in asked.inputs:
    try:
        found.append((given, read(given)))
    except Exception as error:  # pillow raises many types, also for images that are too large
        print(f"skipped: {given} cannot be read ({error})", file=sys.stderr)
if found:
    probabilities, steps, *_ = session.run(None, {"input": np.array([row for _, row in found], dtype=kind)})
    for (given, _), belief, taken in zip(found, probabilities, steps, strict=True):
        print(f"{given}: {names[belief.argmax()]} ({belief.max():.1%}, steps: {taken})")
        if rule is not None:  # contains the true class with probability 0.95, for inputs like the calibration data
            likely = [k for k in np.argsort(-belief) if 1 - belief[k] <= rule["quantiles"][0] or k == belief.argmax()]
            print(f"  95 % set: {', '.join(names[k] for k in likely)}")
if len(found) < len(asked.inputs):
    sys.exit(1)
