"""Limits on the requests to a server, and the exception that refuses one."""

from dataclasses import dataclass, replace

from ricnet.errors import require, require_finite

PIXELS_PER_INPUT, LEAST_PIXELS, MOST_PIXELS = 256, 9_000_000, 16_000_000
"""Default limit on the pixels of an image: a multiple of those that the model reads, and bounds on it."""
IMAGES_TOGETHER = 4
"""Limit on the pixels of all images in a request, in images of the maximum size."""


@dataclass(frozen=True)
class Limits:
    max_body_mb: float = 16.0
    """Largest request in megabytes; a larger one is refused before it is read. Raise it for many photos at once."""
    max_megapixels: float | None = None
    """Maximum pixels of an image, by its header, in millions; the images of a request may have four times as many
    together. By default 256 times the pixels that the model reads, but at least 9 (a 4K screen has 8.3) and at most 16.
    A JPEG that is decoded at a reduced size counts a third of its pixels. Decoding takes up to 16 bytes of memory per
    pixel, however small the file is."""
    max_batch: int = 64
    """Maximum inputs in a request, and in a batch of the model. 1 turns batching off."""
    max_waiting: int = 128
    """Maximum requests in progress; further ones are refused with 429. Their bodies are in memory."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.max_body_mb > 0, "max_body_mb", self.max_body_mb, "above 0")
        most = self.max_megapixels
        require(most is None or most > 0, "max_megapixels", most, "above 0")
        require(self.max_batch >= 1, "max_batch", self.max_batch, "at least 1")
        require(self.max_waiting >= 1, "max_waiting", self.max_waiting, "at least 1")

    def of_input(self, shape: tuple[int, ...]) -> "Limits":
        """The limits with `max_megapixels` set for a model of this input shape, unless the user has set it."""
        if self.max_megapixels is not None or len(shape) != 3:
            return self
        pixels = max(LEAST_PIXELS, min(MOST_PIXELS, PIXELS_PER_INPUT * shape[1] * shape[2]))
        return replace(self, max_megapixels=pixels / 1e6)

    @property
    def body_bytes(self) -> int:
        return round(self.max_body_mb * 1e6)

    @property
    def pixels(self) -> int:
        """Maximum pixels of an image."""
        return LEAST_PIXELS if self.max_megapixels is None else round(self.max_megapixels * 1e6)


class Refusal(Exception):
    """A request that is refused: a status for programs, a sentence for people."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
