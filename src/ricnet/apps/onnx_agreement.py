"""Whether an exported file answers as the classifier does, asked through onnxruntime and PyTorch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Num
from torch import Tensor

from ricnet.errors import RicnetError
from ricnet.training.classifier import Classifier

TOLERANCE = 1e-4
"""How far a probability may be from PyTorch's."""
LEAST_SAME = 0.9
"""The share of inputs that must halt where they do in PyTorch. A value that is all but at the threshold may fall on the
other side of it, which says nothing against the file."""


@dataclass(frozen=True)
class Agreement:
    inputs: int
    same_steps: int
    """How many halt at the same step."""
    difference: float
    """The largest in any probability, of those that halt at the same step."""

    def check(self) -> None:
        if not self.difference <= TOLERANCE or self.same_steps < LEAST_SAME * self.inputs:
            raise RicnetError(
                f"the exported network does not agree with PyTorch ({self.same_steps} of {self.inputs} inputs halt "
                f"where they should, with probabilities {self.difference:.1e} off) and is not written; tell us, please."
            )


def compare(file: bytes | Path, classifier: Classifier, inputs: Num[Tensor, "n ..."]) -> Agreement:
    """`classifier` on the CPU, in float32. A file of fixed steps is compared at every step."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    max_steps = int(session.get_modelmeta().custom_metadata_map["max_steps"])
    answer, steps, *_ = session.run(None, {"input": inputs.numpy()})
    halts = answer.ndim == 2
    path = classifier.refine(inputs, max_steps, halt=halts)
    expected = (path.final if halts else path.log_beliefs).exp().numpy()
    same = steps == path.halt_step.numpy()
    gap = np.abs(answer - expected)[..., same, :]
    return Agreement(len(inputs), int(same.sum()), float(gap.max(initial=0.0)))
