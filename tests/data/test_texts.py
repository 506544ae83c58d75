from contextlib import nullcontext
from pathlib import Path
from zlib import crc32

import pytest
import torch

from refusals import refusal
from ricnet.data import columns_from_json, load
from ricnet.data.columns import fit_columns
from ricnet.data.tables import parse_table, read_table
from ricnet.data.texts import MAX_FILE, is_prose, read_text_file, token_ids
from ricnet.errors import RicnetError

REVIEWS = {
    "good": ["a warm and funny film", "I loved it", "quite simply wonderful", "funny, warm, wise"],
    "bad": ["a cold and empty film", "I hated it!", "quite simply awful", "empty, cold, dull"],
}


def write_table(path: Path, extra: str = "") -> Path:
    rows = [f'"{text}",{label},{n}' for label, texts in REVIEWS.items() for n, text in enumerate(texts)]
    path.write_text("\n".join(["review,label,stars", *rows]) + "\n" + extra, encoding="utf-8")
    return path


def write_folder(folder: Path) -> Path:
    for label, texts in REVIEWS.items():
        for n, text in enumerate(texts):
            (folder / label).mkdir(parents=True, exist_ok=True)
            (folder / label / f"{n}.txt").write_text(text, encoding="utf-8")
    return folder


def test_ids_are_checksums_of_words_and_of_pairs_of_neighbours() -> None:
    tokens = ["good", "good !", "!", "! été", "été", "été good", "good"]
    ids = [crc32(token.encode()) % 2**31 for token in tokens]
    assert token_ids("Good!\n\nÉTÉ  good", 100) == ids
    assert [token_ids("Good!\n\nÉTÉ  good", most) for most in (1, 4, 5)] == [ids[:1], ids[:4], ids[:5]]
    assert token_ids(" \t", 9) == []
    assert token_ids("\udcff", 9)  # half of a character, as a terminal may send it


def test_a_column_of_texts_becomes_ids_padded_with_zeros(tmp_path: Path) -> None:
    data = load(write_table(tmp_path / "reviews.csv", '"",good,0\n'), target="label", text="review")
    assert data.is_text
    assert data.train.inputs.dtype == torch.int32
    assert data.notes == ("Only 'review' is learned from, not 'stars'.", "1 rows have an empty 'review'; left out.")
    for split in (data.train, data.val, data.test):
        assert split.texts is not None
        for row, text in zip(split.inputs.tolist(), split.texts, strict=True):
            found = token_ids(text, len(row))
            assert row == found + [0] * (len(row) - len(found))
    longest = max(len(token_ids(text, 99)) for text in data.train.texts or ())
    assert data.input_shape == (longest,)


def test_how_texts_are_read_is_kept_as_json(tmp_path: Path) -> None:
    path = write_table(tmp_path / "reviews.csv")
    data = load(path, target="label", text="review")
    assert data.columns is not None
    again = columns_from_json(data.columns.to_json(), "it")
    assert again == data.columns
    whole = load(path, columns=again, undivided=True)
    assert torch.equal(whole.test.inputs, again.encode(read_table(path)))


@pytest.mark.parametrize("names", ["a", "ab"])
@pytest.mark.parametrize("tokens", [0, -1, 2**40, "9", None, 3])
def test_damaged_columns_of_text_are_refused(names: str, tokens: object) -> None:
    """One column of text with a wrong number of tokens, or two columns."""
    entry = {"target": "y", "inputs": [{"kind": "text", "name": name, "tokens": tokens} for name in names]}
    with nullcontext() if (names, tokens) == ("a", 3) else refusal("columns"):
        columns_from_json(entry, "it")


def test_a_folder_of_texts_is_read_like_a_table_of_them(tmp_path: Path) -> None:
    data = load(write_folder(tmp_path / "reviews"))
    assert data.class_names == ("bad", "good")
    assert (len(data.train), len(data.val), len(data.test)) == (4, 2, 2)
    assert data.is_text
    read = [text for split in (data.train, data.val, data.test) for text in split.texts or ()]
    assert sorted(read) == sorted(REVIEWS["good"] + REVIEWS["bad"])
    for part in ("train", "test"):
        write_folder(tmp_path / "parts" / part)
    (tmp_path / "parts" / "readme.txt").write_text("how it was made")
    assert len(load(tmp_path / "parts").test) == 8


def test_texts_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "bad" / "latin.txt").write_bytes("schön".encode("latin-1"))
    (folder / "bad" / "void.txt").write_text(" \n")
    [note] = load(folder).notes
    assert note.startswith("2 files could not be read; skipped: bad/latin.txt, bad/void.txt")
    assert "is not UTF-8 text (invalid start byte at byte 3); convert it" in note
    (folder / "good" / "0.txt").write_bytes(b"x" * (MAX_FILE + 1))
    assert "good/0.txt" in load(folder).notes[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_byte_order_mark_says_how_a_file_is_written(tmp_path: Path, encoding: str) -> None:
    """UTF-16 was refused, though the file says that it is."""
    folder, path = write_folder(tmp_path / "reviews"), tmp_path / "it.csv"
    (folder / "bad" / "0.txt").write_bytes("\ufeffsehr schön\n".encode(encoding))
    assert read_text_file(folder / "bad" / "0.txt") == "sehr schön"
    assert load(folder).notes == ()
    path.write_bytes("\ufeffgröße,kind\n1,süß\n".encode(encoding))
    assert read_table(path).columns == {"größe": ["1"], "kind": ["süß"]}


def test_where_most_texts_cannot_be_read_nothing_is_learned_from_the_others(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    for number in range(8):
        (folder / "bad" / f"latin{number}.txt").write_bytes("schön".encode("latin-1"))
    assert "8 files could not be read" in load(folder).notes[0]
    (folder / "bad" / "another.txt").write_bytes("schön".encode("latin-1"))
    with refusal(folder, "9 of 17 texts", "another.txt", "UTF-8", "iconv"):
        load(folder)


def test_a_folder_of_images_may_hold_captions(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "bad" / "0.png").write_bytes(b"no image")
    with refusal(tmp_path, "image"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("target", "text", "names"),
    [
        ("label", "revue", ("'revue'", "'review'")),
        ("label", "label", ("text", "label")),
        ("label", "void", ("'void'", "empty")),
        ("one", "review", ("one class", "'x'")),
    ],
)
def test_errors_name_the_cause(tmp_path: Path, target: str, text: str, names: tuple[str, ...]) -> None:
    rows = [f"{each}\t{label}\t\tx" for label, texts in REVIEWS.items() for each in texts]
    path = tmp_path / "it.tsv"
    path.write_text("\n".join(["review\tlabel\tvoid\tone", *rows]), encoding="utf-8")
    with refusal(*names):
        load(path, target=target, text=text)


def test_text_is_for_tables(tmp_path: Path) -> None:
    with refusal("text", "review", "table"):
        load(write_folder(tmp_path), text="review")


def test_prose_in_a_table_is_pointed_out() -> None:
    prose = [f"what number {n} says of this long and winding film" for n in range(40)]
    table = parse_table("\n".join(["note,stars,y", *(f"{text},{n % 5},{n % 2}" for n, text in enumerate(prose))]), "it")
    columns, notes = fit_columns(table, "y")
    assert [column.name for column in columns.inputs] == ["stars"]
    assert [str(RicnetError(note)) for note in notes] == [
        "Column 'note' looks like prose; to learn from its words, and from nothing else, give --text note."
    ]
    only = parse_table("\n".join(["note,y", *(f"{text},{n % 2}" for n, text in enumerate(prose))]), "it")
    with refusal("'note'", "--text note"):
        fit_columns(only, "y")
    short = [
        f"{text},{n % 2}"
        for n, text in enumerate(["bus was late", "soup was cold"] * 3 + [f"all {n} good" for n in "abcdefgh"])
    ]
    with refusal("nothing but texts", "--text note"):  # short texts, but there is nothing else to learn from
        fit_columns(parse_table("\n".join(["note,y", *short]), "it"), "y")
    assert not is_prose(["Braund, Mr. Owen Harris", "Heikkinen, Miss. Laina"])
    assert not is_prose(["the same long sentence in each and every row"] * 30)
