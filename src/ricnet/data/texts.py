"""Texts as token ids. A pretrained checkpoint has its own tokenizer, which is stored with the model as JSON.

Without one, ids are CRC-32 sums of words and word pairs, so that there is no vocabulary to learn or store:

    words are runs of letters, digits and _, and any other character that is no space, in lower case;
    for each word, ids are crc32(word) and crc32(word + " " + next word), in UTF-8, without the highest bit, 0 as 1;
    they are cut or padded with 0 to a fixed length.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int32

from ricnet.data.tables import Cells, Table
from ricnet.errors import RicnetError, require_extra
from ricnet.io import decode, opened, read_text

MOST_TOKENS = 1_024  # ids of a text, half of them words; more cost time and rarely change an answer
MOST_PIECES = 256  # ids by the tokenizer of a checkpoint, whose time grows with their square
CHARACTERS_PER_ID = 64  # characters of a text that are read for each of its ids
MAX_FILE = 1 << 24  # bytes of a text file; a long novel has a tenth of it
PROSE_WORDS, PROSE_ROWS = 6, 1_000  # minimum mean number of words in a column of prose, and rows where they are counted
_LETTERS = re.compile(r"[^\W\d_]+")
_WORD = re.compile(r"\w+|[^\w\s]")


def token_ids(text: str, most: int) -> list[int]:
    """Ids of each word and of its pair with the next word."""
    words = [match[0].lower() for match in islice(_WORD.finditer(text), most // 2 + 1)]
    tokens = [token for word, after in pairwise([*words, ""]) for token in (word, f"{word} {after}")]
    return [
        zlib.crc32(token.encode(errors="replace")) & 0x7FFFFFFF or 1
        for token in tokens[: min(most, 2 * len(words) - 1)]
    ]


@dataclass(frozen=True)
class Tokenizer:
    """Tokenizer of a pretrained checkpoint, run by the library `tokenizers`."""

    content: str
    """Its tokenizer.json."""
    pad: int
    """Padding id."""
    most: int
    """Maximum ids that the checkpoint can read."""

    def ids(self, text: str, most: int) -> list[int]:
        return _opened(self.content, most).encode(text[: CHARACTERS_PER_ID * most]).ids  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _opened(content: str, most: int) -> Any:
    require_extra("this model's tokenizer", "hf", "tokenizers")
    import tokenizers

    try:
        found = tokenizers.Tokenizer.from_str(content)
        found.no_padding()
        found.enable_truncation(most)
    except Exception as error:  # the library raises plain exceptions
        raise RicnetError(f"the tokenizer cannot be read ({error}); get a whole copy of its checkpoint.") from error
    return found


def read_tokenizer(folder: Path, pad: int, most: int) -> Tokenizer:
    """Tokenizer in a folder as transformers saves it."""
    path = folder / "tokenizer.json"
    try:
        content = read_text(path)
    except (OSError, ValueError) as error:
        raise RicnetError(
            f"{path} cannot be read ({error}), and it says how texts become tokens; save it there with the tokenizer's "
            "save_pretrained."
        ) from error
    return Tokenizer(content, pad, min(most, MOST_PIECES))


@dataclass(frozen=True)
class Text:
    """A column of texts, the only input of its model: each row is the ids of one text."""

    kind: ClassVar[str] = "text"

    name: str
    tokens: int
    """Number of ids in a row."""
    tokenizer: Tokenizer | None = None
    """None for words and word pairs."""
    known: Bool[np.ndarray, "slots"] | None = field(default=None, compare=False, repr=False)
    """Whether the network knows the words with an id of each slot, id modulo the number of slots; None if every word
    counts as known. Not stored: it is read from the network."""

    @property
    def width(self) -> int:
        return self.tokens

    @property
    def rule(self) -> str:
        """Description of the ids for users of an exported model."""
        if self.tokenizer is not None:
            return (
                f"{self.tokens} token ids for each text (int32) by the checkpoint's tokenizer, cut or padded with "
                f"{self.tokenizer.pad}; its tokenizer.json is in the metadata (columns)."
            )
        return (
            f"{self.tokens} token ids for each text (int32), alternating a word and its pair with the next word "
            '("word next"): crc32 of the UTF-8 in lower case, without the highest bit, 0 as 1; cut or padded with 0. '
            r"Words are the matches of the regular expression \w+|[^\w\s], with letters of any script."
        )

    def encode(self, table: Table) -> Int32[np.ndarray, "n tokens"]:
        return self.rows(table.columns[self.name])

    def rows(self, texts: Sequence[str] | Cells) -> Int32[np.ndarray, "n tokens"]:
        ids = np.full((len(texts), self.tokens), self.tokenizer.pad if self.tokenizer else 0, dtype=np.int32)
        split = self.tokenizer.ids if self.tokenizer else token_ids
        for row, text in zip(ids, texts, strict=True):
            found = split(text, self.tokens)
            row[: len(found)] = found
        return ids

    def notes(self, texts: Sequence[str] | Cells, ids: Int32[np.ndarray, "n tokens"]) -> list[str]:
        """Notes about texts that are empty or have no known word; `ids` are their rows."""
        empty, strange = sum(not text.strip() for text in texts), int(self.unknown(ids).sum())
        found = {"are empty": empty, "have no word that the model knows": strange}
        return [f"{n} of {len(texts)} texts {what}; ignore their predictions." for what, n in found.items() if n]

    def unknown(self, ids: Int32[np.ndarray, "n tokens"]) -> Bool[np.ndarray, "n"]:
        """Rows of texts with words, of which the network knows none, nor a pair of them."""
        if self.known is None or self.tokenizer is not None:
            return np.zeros(len(ids), dtype=bool)
        words = ids > 0
        known = words & self.known[ids % len(self.known)]
        return np.asarray(words.any(1) & ~known.any(1))


def fit_text(texts: Iterable[str], name: str, tokenizer: Tokenizer | None) -> Text:
    """A column as long as the longest of the training texts."""
    split, most = (tokenizer.ids, tokenizer.most) if tokenizer else (token_ids, MOST_TOKENS)
    return Text(name, max((len(split(text, most)) for text in texts), default=1), tokenizer)


def is_prose(cells: Iterable[str], words: int = PROSE_WORDS) -> bool:
    """Whether these cells are sentences of at least `words` words on average rather than categories."""
    some = list(filter(None, cells))
    if not some or 2 * len(set(some)) < len(some):
        return False
    return sum(len(_LETTERS.findall(cell[:1_000])) for cell in some) >= words * len(some)


def as_texts(given: Any) -> list[str] | None:
    """One text, or those in a list, an array or a column of a data frame; None for anything else."""
    if isinstance(given, str):
        return [given]
    several = isinstance(given, list | tuple | np.ndarray) or hasattr(given, "to_list")
    cells = list(given) if several and getattr(given, "ndim", 1) == 1 else []
    return list(map(str, cells)) if cells and all(isinstance(cell, str) for cell in cells) else None


def read_text_file(path: Path) -> str:
    with opened(path) as file:
        return decode_text(file.read(MAX_FILE + 1), str(path))


def decode_text(content: bytes, name: str) -> str:
    if len(content) > MAX_FILE:
        raise RicnetError(f"{name} has more than {MAX_FILE / 1e6:.0f} MB, the maximum for one text; divide it.")
    try:
        return decode(content).strip()
    except UnicodeDecodeError as error:
        raise RicnetError(
            f"{name} is not UTF-8 text ({error.reason} at byte {error.start}); convert it: an editor saves it as "
            "UTF-8, or iconv -f ISO-8859-1 -t UTF-8, with the encoding it has."
        ) from None
