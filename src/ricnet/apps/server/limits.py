"""What a server takes on, so that no client can ask for more than there is."""

from dataclasses import dataclass

from ricnet.errors import require, require_finite


@dataclass(frozen=True)
class Limits:
    max_body_mb: float = 16.0
    """Largest request in megabytes; a larger one is refused before it is read. Raise it for many photos at once."""
    max_megapixels: float = 50.0
    """Most pixels that the images of one request may have together, as their headers say, in millions. An image takes
    up to 16 bytes a pixel while it is decoded, however small its file is."""
    max_batch: int = 64
    """Most inputs in a request, and most that the model takes at once. 1 answers every request by itself."""
    max_waiting: int = 128
    """Most requests that may be under way; further ones are refused with 429. Their bodies are in memory."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.max_body_mb > 0, "max_body_mb", self.max_body_mb, "above 0")
        require(self.max_megapixels > 0, "max_megapixels", self.max_megapixels, "above 0")
        require(self.max_batch >= 1, "max_batch", self.max_batch, "at least 1")
        require(self.max_waiting >= 1, "max_waiting", self.max_waiting, "at least 1")

    @property
    def body_bytes(self) -> int:
        return round(self.max_body_mb * 1e6)

    @property
    def pixels(self) -> int:
        return round(self.max_megapixels * 1e6)


class Refusal(Exception):
    """A request that is not answered: the status says why to a program, the sentence to a person."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
