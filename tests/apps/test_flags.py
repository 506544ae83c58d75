import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from refusals import refusal
from ricnet.apps.cli import Positional, UnknownFlag, parse, with_dashes
from ricnet.apps.commands import compare, sweep, train
from ricnet.methods import METHODS
from ricnet.models.config import Optimization
from ricnet.nets.encoders import EncoderOptions
from ricnet.studies.experiments import all_systems, find_system
from ricnet.training.recipes import TYPICAL, preset

from .conftest import Refused, RunRic


@dataclass(frozen=True)
class Inner:
    batch_size: int = 32
    clip: float | None = None
    augment: bool = True


@dataclass(frozen=True)
class Outer:
    run: Annotated[str, Positional("RUN")]
    """Some long text about it."""
    schedule: Literal["cosine", "constant"] = "cosine"
    inner: Inner = field(default_factory=Inner)


def test_fields_of_nested_classes_are_flags_without_a_prefix() -> None:
    found = parse(Outer, ["here", "--batch-size", "8", "--no-augment"], "test")
    assert found == Outer("here", inner=Inner(batch_size=8, augment=False))


@dataclass(frozen=True)
class Reading(Outer):
    data: str | None = None
    out: str | None = None
    several: tuple[str, ...] = ()


def test_none_is_no_value_unless_the_flag_takes_any_text() -> None:
    for word in ("None", "none"):
        assert parse(Outer, ["here", "--clip", word], "test").inner.clip is None
    assert parse(Reading, ["here", "--data", "none"], "test").data == "none"


@dataclass(frozen=True)
class Sharing:
    repo: Annotated[str, Positional("USER/NAME")]


HELP = "see ric test --help"


@pytest.mark.parametrize(
    ("kind", "typed", "names"),
    [
        (Outer, "r --bath-size 8", ("--bath-size", "--batch-size?")),
        (Outer, "r --batchsize=8", ("--batchsize", "--batch-size?")),
        (Outer, "r --no-augmnt", ("--no-augmnt", "--no-augment?")),
        (Outer, "r --horizon 8", ("--horizon", HELP)),
        (Outer, "r -b 8", ("-b", HELP)),
        (Outer, "r s --clip -1", ("with s", HELP)),
        (Reading, "r new.csv", ("with new.csv", HELP)),
        (Reading, "r 0.9", ("with 0.9", HELP)),
    ],
)
def test_unreadable_values_are_one_sentence(kind: type, typed: str, names: tuple[str, ...]) -> None:
    with refusal("ric test", *names):
        parse(kind, typed.split(), "test")


@pytest.mark.parametrize(
    ("kind", "typed", "names"),
    [
        (Outer, "r --schedule cosin", ("--schedule", "'cosin'", "one of 'cosine', 'constant'.")),
        (Outer, "r --clip 1 --batch-size 8.5", ("--batch-size", "'8.5'", "a whole number.")),
        (Outer, "r --batch-size=many", ("--batch-size", "'many'", "a whole number.")),
        (Outer, f"r --batch-size {2**63}", ("--batch-size", "must fit into 64 bits.")),
        (Outer, "r --clip x", ("--clip", "'x'", "a number or None.")),
        (Outer, "r --batch-size None --clip None", ("--batch-size", "'None'", "a whole number.")),
        (Outer, "r --clip", ("--clip needs a value", "a number or None.")),
        (Outer, "r --clip --no-augment", ("--clip needs a value",)),
        (Outer, "r --clip --batch-size 8", ("--clip needs a value",)),
        (Reading, "r --data --out=here", ("--data needs a value", "a text or None.")),
        (Reading, "r --several", ("--several needs a value", HELP)),
        (Reading, "r --several --out here", ("--several needs a value", HELP)),
        (Outer, "", ("RUN", HELP)),
        (Sharing, "", ("USER/NAME", HELP)),
    ],
)
def test_a_value_that_cannot_be_is_one_sentence(
    kind: type, typed: str, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with refusal(*names):
        parse(kind, typed.split(), "test")
    assert capsys.readouterr().err == ""  # until the command line says it, with unprintable letters made visible


def test_negative_numbers_are_values_and_not_flags() -> None:
    """Numbers as Python writes them, below zero too."""
    found = parse(Outer, ["r", "--clip", "-1e-3", "--batch-size=1_0", "--schedule", "constant"], "test")
    assert found == Outer("r", "constant", Inner(batch_size=10, clip=-1e-3))
    with refusal("--clip needs a value"):
        parse(Outer, ["r", "--batch-size", "-8", "--clip", "--5"], "test")


def test_an_unknown_flag_is_named_in_the_error() -> None:
    with pytest.raises(UnknownFlag) as problem:
        parse(Inner, ["--gae-lambda=3"], "test")
    assert problem.value.flag == "--gae-lambda"


SAME = ["--epochs", "7", "--batch-size=32", "--no-augment", "--gamma", "0.6", "--width", "0.25", "--val-fraction=0.3"]
MEANT = {"epochs": 7, "batch_size": 32, "augment": False, "gamma": 0.6, "width": 0.25, "val_fraction": 0.3}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'high' if a + b > 0 else 'low'}" for a, b in rng.normal(size=(120, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *rows]))
    return tmp_path / "t.csv"


def test_train_compare_and_sweep_read_the_same_flags() -> None:
    flags = ["t.csv", *SAME, "--target", "y", "--device", "cpu", "--data-dir", "there"]
    trained = train.read_training(train.Train, flags, "train")
    for options, settings in (trained[:2], compare.read_compare(flags), sweep.read_sweep(flags)):
        assert settings == MEANT
        assert (options.target, options.device, options.data_dir) == ("y", "cpu", Path("there"))


def test_settings_not_given_come_from_the_preset() -> None:
    assert sweep.read_sweep([])[1] == {}
    typical = preset("fast", None, TYPICAL).optimization.epochs
    assert sweep.read_sweep(["--epochs", str(typical)])[1] == {"epochs": typical}


@pytest.mark.parametrize(
    "flags", [["--head", "logistic-normal"], ["--objective", "expected"], ["--credit", "joint"], ["--rollouts", "1"]]
)
def test_a_preset_before_any_data_refuses_no_flag_by_its_own_choices(flags: list[str], run_ric: RunRic) -> None:
    run_ric("train", "digits", *flags, "--epochs", "1", "--horizon", "2", "--out", f"runs/{flags[0]}")
    assert sweep.read_sweep([*flags, "digits"])[1].keys() == {flags[0][2:]}
    method = json.loads(Path(f"runs/{flags[0]}/config.json").read_text())["config"]["method"]
    assert method["credit"] == "joint" if "--rollouts" not in flags else not method["label_baseline"]


@pytest.mark.parametrize(("flag", "value"), [("--gamma", "2"), ("--horizon", "0"), ("--lr", "-1")])
def test_a_value_out_of_range_is_refused_before_data_is_read(
    flag: str, value: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricnet.training.api.load_data", lambda *_, **__: pytest.fail("data was read"))
    refused((flag, value), "train", flag, value)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--preset closed-form --credit marginal", ("--credit", "not of ric-closed-form", "--method ric-on-policy")),
        ("--exits stage --credit joint", ("--credit", "not of ric-closed-form", "--method ric-on-policy")),
        ("--exact-gain", ("--exact-gain is a method now", "--method ric-closed-form")),
        ("--updates-per-snapshot 2", ("--updates-per-snapshot", "not of ric-on-policy", "--method ric")),
        ("--objective ppo", ("--objective", "'ppo'", "'policy-gradient', 'expected'")),
    ],
)
def test_a_flag_without_effect_is_refused_in_one_sentence(flags: str, named: tuple[str, ...], refused: Refused) -> None:
    refused(named, "train", "digits", *flags.split())


def test_the_output_starts_with_the_method(run_ric: RunRic, tmp_path: Path) -> None:
    """The default is what it was, under its own name; ric is Algorithm 1, and says so once."""
    short = ["--epochs", "1", "--horizon", "2", "--width", "0.1", "--device", "cpu", "--out"]
    first = run_ric("train", *short, tmp_path / "default").err.splitlines()[0]
    assert first.startswith("training RIC, on-policy (ric-on-policy): ")
    said = run_ric("train", "--method", "ric", *short, tmp_path / "ric").err
    assert said.count("note: --method ric is Algorithm 1 of the paper") == 1
    assert "training RIC, Algorithm 1 (ric): " in said
    said = run_ric("train", "--preset", "snapshots", *short, tmp_path / "old").err
    assert "note: --preset snapshots is deprecated and will be removed in the next version; use --method ric" in said
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("ric", "old", "default")]
    assert weights[0] == weights[1] != weights[2]


def test_compare_knows_of_every_system_whether_it_takes_a_budget() -> None:
    takes = {name: compare._takes_budget(find_system(name), "fast", {"exits": "stage"}) for name in all_systems()}
    assert {name for name, does in takes.items() if not does} == {"act", "pondernet"}
    assert not compare._takes_budget(find_system("anytime"), "fast", {})


def test_the_settings_of_several_methods_are_one_list_of_flags() -> None:
    flags = ["--methods", "supervised", "ric", "--objective", "expected", "--uniform-mix", "0.1", "--epochs", "3"]
    _, given = compare.read_compare(flags)
    assert given == {"objective": "expected", "uniform_mix": 0.1, "epochs": 3}
    assert compare.own_settings(find_system("ric"), given, "fast") == {"objective": "expected", "epochs": 3}
    assert compare.own_settings(find_system("supervised"), given, "fast") == {"uniform_mix": 0.1, "epochs": 3}


def test_compare_takes_the_flags_of_train(table: Path, run_ric: RunRic) -> None:
    quick = ["--epochs", "2", "--batch-size", "32", "--width", "0.1", "--horizon", "3", "--seeds", "1", "--jobs", "1"]
    quick += ["--no-baselines"]
    said = run_ric("compare", "t.csv", "--target", "y", "--methods", "supervised", "ric", *quick).err
    assert "note: --horizon 3 has no effect on supervised" in said
    stored: dict[str, dict[str, Any]] = {}
    for path in Path("runs/studies").glob("*/config.json"):
        config = json.loads(path.read_text())["config"]
        stored[config["method"]["name"]] = config
    assert stored.keys() == {"supervised", "ric-on-policy"}
    assert stored["ric-on-policy"]["method"]["horizon"] == 3
    for config in stored.values():
        assert config["data"] == f"{table}#y"
        assert (config["optimization"]["epochs"], config["network"]["width"]) == (2, 0.1)


def test_sweep_takes_the_flags_of_train(table: Path, run_ric: RunRic) -> None:
    quick = ["--epochs", "2", "--batch-size", "32", "--width", "0.1", "--trials", "1", "--device", "cpu"]
    quick += ["--no-baselines"]
    said = run_ric("sweep", "t.csv", "--target", "y", "--method", "supervised", *quick).out
    (path,) = Path("runs/sweep-t-y-supervised").glob("*/config.json")
    config = json.loads(path.read_text())["config"]
    assert (config["data"], config["optimization"]["epochs"], config["network"]["width"]) == (f"{table}#y", 2, 0.1)
    again = said.split("again")[1]
    assert "ric train 't.csv#y' --method supervised --preset fast --epochs 2 --batch-size 32 --width 0.1" in again


def test_sweep_says_what_it_leaves_out_of_the_data(table: Path, run_ric: RunRic) -> None:
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[1].rpartition(",")[0] + ","]))
    quick = ["--epochs", "1", "--width", "0.1", "--trials", "1", "--device", "cpu"]
    said = run_ric("sweep", "t.csv", "--target", "y", "--method", "supervised", *quick).err
    assert "note: 1 row has no 'y'; left out." in said


@pytest.mark.parametrize("command", ["train", "compare", "sweep"])
def test_flags_of_another_method_and_help(
    command: str, run_ric: RunRic, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What people change is shown, in groups."""
    method = "--methods" if command == "compare" else "--method"
    way_out = "remove it." if command == "compare" else "or use --method ric-on-policy."
    refused(("--rollouts", "ric", way_out), command, method, "supervised", "--rollouts", "2")
    monkeypatch.setenv("COLUMNS", "100")
    page = run_ric(command, "--help").out
    assert page.count("\n") < 100
    assert all(f"{heading} options" in page for heading in ("data", "model", "training", "run"))
    assert {"--epochs", "--lr", "--target", "--encoder", "--device", "--help-all"} <= set(re.findall(r"--[\w-]+", page))
    assert "--log-ratio-clamp" not in page


def test_every_flag_may_have_underscores_and_no_value_is_changed() -> None:
    typed = "train my_data.csv --batch_size 64 --no_label_baseline --data_dir=my_data --out a_b -1_0"
    dashed = "train my_data.csv --batch-size 64 --no-label-baseline --data-dir=my_data --out a_b -1_0"
    assert with_dashes(typed.split()) == dashed.split()


@pytest.mark.parametrize(
    "typed",
    [
        *("train --help_all", "compare --help_all", "sweep --help_all"),
        *("predict none x --max_steps 2", "evaluate none --halt_threshold=0.1", "serve none --max_batch 2"),
    ],
)
def test_commands_read_underscores(typed: str, run_ric: RunRic) -> None:
    assert "flag" not in run_ric(*typed.split()).err


def test_a_switch_with_underscores_is_one(tmp_path: Path, run_ric: RunRic) -> None:
    out = tmp_path / "run"
    said = run_ric("train", "--no_label_baseline", "--epochs", 1, "--horizon", 2, "--device", "cpu", "--out", out)
    assert said.code == 0, said.err
    assert not json.loads((out / "config.json").read_text())["config"]["method"]["label_baseline"]


@pytest.mark.parametrize("method", METHODS)
def test_help_all_is_complete_for_each_method(method: str, run_ric: RunRic) -> None:
    page = run_ric("train", "--method", method, "--help-all").out
    flags = set(re.findall(r"--[\w-]+", page))
    for kind in (METHODS[method], EncoderOptions, Optimization, train.Train):
        names = {field.name for field in dataclasses.fields(kind)} - {"data", "hyper", "network", "optimization"}
        assert {f"--{name.replace('_', '-')}" for name in names} <= flags
    assert method != "supervised" or "--gae-lambda" not in flags
