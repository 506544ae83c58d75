from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from ricnet.apps.commands.parsing import UnknownFlag, parse
from ricnet.errors import RicnetError


@dataclass(frozen=True)
class Inner:
    batch_size: int = 32
    clip: float | None = None
    augment: bool = True


@dataclass(frozen=True)
class Outer:
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Some long text about it."""
    schedule: Literal["cosine", "constant"] = "cosine"
    inner: Inner = field(default_factory=Inner)


def test_fields_of_nested_classes_are_flags_without_a_prefix() -> None:
    found = parse(Outer, ["here", "--batch-size", "8", "--no-augment"], "test")
    assert found == Outer("here", inner=Inner(batch_size=8, augment=False))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["r", "--bath-size", "8"], "ric test has no flag --bath-size; did you mean --batch-size?"),
        (["r", "--batchsize=8"], "ric test has no flag --batchsize; did you mean --batch-size?"),
        (["r", "--no-augmnt"], "ric test has no flag --no-augmnt; did you mean --no-augment?"),
        (["r", "--horizon", "8"], "ric test has no flag --horizon; see ric test --help."),
        (["r", "-b", "8"], "ric test has no flag -b; see ric test --help."),
        (["r", "s", "--clip", "-1"], "ric test does not know what to do with s; see ric test --help."),
    ],
)
def test_what_cannot_be_read_is_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(RicnetError) as problem:
        parse(Outer, arguments, "test")
    assert str(problem.value) == sentence


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["r", "--schedule", "cosin"], "--schedule"),
        (["r", "--batch-size", "8.5"], "--batch-size"),
        (["r", "--clip", "x"], "--clip"),
        (["r", "--clip"], "--clip"),
        ([], "RUN"),
    ],
)
def test_values_that_cannot_be_are_explained_by_tyro(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RicnetError, match="ric test cannot read this:") as problem:
        parse(Outer, arguments, "test")
    assert named in str(problem.value)
    assert capsys.readouterr().err == ""  # until the command line says it, with unprintable letters made visible


@dataclass(frozen=True)
class Reading(Outer):
    data: str | None = None
    out: str | None = None


@dataclass(frozen=True)
class Writing(Outer):
    out: str | None = None


def test_a_path_too_many_may_belong_to_a_flag(tmp_path: Path) -> None:
    (tmp_path / "there.csv").touch()
    for kind, path, advice in (
        (Reading, "new.csv", "did you mean --data new.csv?"),
        (Writing, "model.onnx", "did you mean --out model.onnx?"),
        (Writing, f"{tmp_path}/there.csv", "see ric test --help."),  # which would be written over
        (Reading, "0.9", "see ric test --help."),
        (Reading, 30 * "long/" + "new.csv", f"did you mean --data {30 * 'long/'}new.csv?"),
    ):
        with pytest.raises(RicnetError) as problem:
            parse(kind, ["r", path], "test")
        assert str(problem.value) == f"ric test does not know what to do with {path}; {advice}"


@dataclass(frozen=True)
class Sharing:
    repo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")]


def test_what_is_missing_has_its_whole_name() -> None:
    with pytest.raises(RicnetError, match="USER/NAME"):
        parse(Sharing, [], "test")


def test_an_unknown_flag_is_kept_for_who_knows_more_of_it() -> None:
    with pytest.raises(UnknownFlag) as problem:
        parse(Inner, ["--gae-lambda=3"], "test", Inner())
    assert problem.value.flag == "--gae-lambda"
