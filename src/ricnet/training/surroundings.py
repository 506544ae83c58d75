"""What training takes from the program around it, and how it gives it back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ricnet.errors import RicnetError
from ricnet.training.config import Config


@contextmanager
def apart(config: Config, device: torch.device) -> Iterator[None]:
    """The caller's random state, current device and choice of kernels are as before; too little memory is a
    sentence."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []), torch.cuda.device(device if on_gpu else -1):
        before = torch.backends.cudnn.benchmark
        try:
            yield
        except torch.OutOfMemoryError:
            raise RicnetError(
                f"{device} has too little memory for batches of {config.optimization.batch_size}; "
                "lower --batch-size, --resolution or --width."
            ) from None
        finally:
            torch.backends.cudnn.benchmark = before
