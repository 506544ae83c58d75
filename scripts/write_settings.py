"""Write docs/settings.md: every setting of `ric train`, from the sentences under the fields that hold them.

python scripts/write_settings.py            # write
python scripts/write_settings.py --check    # write nothing; fail if the page is not what the code says
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ricnet.apps.cli import docstrings
from ricnet.methods import METHODS
from ricnet.models.config import Config, Optimization
from ricnet.nets.encoders import EncoderOptions
from ricnet.training.recipes import TYPICAL, preset

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
OPENING = """\
# Settings

For users who want to change a default. After this page you know every setting of `ric train`, its value in both
presets, and what raising or lowering it does.

A setting is a flag (`--batch-size 256` or `--batch_size 256`; `--no-augment` turns a switch off), an argument of
`ricnet.train` (`batch_size=256`) and an entry of a run's `config.json`. Settings that are not given come from the
preset: `fast`, our own, or `paper`. The values here are for 50,000 images of 10 classes; some differ for other data.
`ric train`, `ric compare` and `ric sweep` have the same flags: `--help` shows the usual ones, `--help-all` all of them.
`ric compare DATA --methods ric ric:gamma=0.9` compares two values, `ric sweep DATA` searches.

*Written by `scripts/write_settings.py` from the code.*"""
ALGORITHMS = {"ric": "Algorithm 1", "ric-on-policy": "on-policy", "ric-closed-form": "closed form"}
HEADINGS = {
    "supervised": ("Supervised learning", "`--method supervised`: one pass."),
    "anytime": ("Anytime", "`--method anytime`: cross-entropy at every step, without reinforcement."),
    "act": ("ACT", "`--method act`: adaptive computation time (Graves 2016)."),
    "pondernet": ("PonderNet", "`--method pondernet` (Banino et al. 2021)."),
}
RUN = (
    *(
        "text",
        "seed",
        "resolution",
        "oversize",
        "val_fraction",
        "train_fraction",
        "final_fit",
        "test",
        "test_fraction",
        "calibration_fraction",
        "label_noise",
        "class_weight",
        "calibration",
        "halt_rule",
        "budget",
        "baselines",
    ),
)
"""Fields of `Config` to list; the others are parts with their own tables, or record where the settings came from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page is not what the code says"
    )
    check, text = parser.parse_args().check, page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit("write_settings: docs/settings.md is not what the code says; run scripts/write_settings.py.")


def page() -> str:
    """Settings of the methods first, then those that all methods share."""
    names = (*ALGORITHMS, *HEADINGS)
    configs = {name: tuple(preset(kind, name, TYPICAL) for kind in ("fast", "paper")) for name in names}
    parts = [OPENING, algorithms({name: configs[name] for name in ALGORITHMS})]
    for name, (title, about) in HEADINGS.items():
        fast, paper = configs[name]
        parts.append(f"## {title}\n\n{about}\n\n{table(METHODS[name], fast.method, paper.method)}")
    fast, paper = configs["ric-on-policy"][0], configs["ric"][1]
    others = f"As for RIC. The paper trains the other methods for {METHODS['supervised'].paper_epochs} epochs."
    parts.append(f"## Training\n\n{others}\n\n{table(Optimization, fast.optimization, paper.optimization)}")
    parts.append(f"## Encoder\n\n{table(EncoderOptions, fast.network, paper.network)}")
    parts.append(f"## Data and run\n\n{table(Config, fast, paper, RUN)}")
    return "\n\n".join(parts) + "\n"


def algorithms(configs: Mapping[str, tuple[Config, Config]]) -> str:
    """One table for RIC's three algorithms, with a dash where one has no such setting."""
    fields = {name: [field.name for field in dataclasses.fields(METHODS[name])] for name in configs}
    names = dict.fromkeys(name for own in fields.values() for name in own)
    titles = [*(f"`fast`, {ALGORITHMS[name]}" for name in configs), "`paper`"]
    lines = [f"| setting | {' | '.join(titles)} | what it does |", "| :--- |" + " :--- |" * (len(titles) + 1)]
    for name in names:
        having = [each for each in configs if name in fields[each]]
        fast = [value(getattr(configs[each][0].method, name)) if each in having else "–" for each in configs]
        paper = value(getattr(configs[having[0]][1].method, name))
        kinds = [METHODS[each] for each in having]
        sentences = dict.fromkeys(docstrings(kind)[name] + choices(get_type_hints(kind)[name]) for kind in kinds)
        text = " / ".join(sentences).replace("|", "\\|")
        lines.append(f"| `--{name.replace('_', '-')}` | {' | '.join(fast)} | {paper} | {text} |")
    about = (
        "`--method ric` is Algorithm 1 (default for texts and of `--preset paper`), `ric-on-policy` the default for "
        "images and tables, `ric-closed-form` with `--exits` ([three algorithms](concepts.md#three-algorithms)). "
        "A dash: no such setting."
    )
    return f"## RIC\n\n{about}\n\n" + "\n".join(lines)


def table(kind: type, fast: Any, paper: Any, names: tuple[str, ...] | None = None) -> str:
    """A row per setting: its flag, its value in both presets, what it does."""
    sentences = {name: text.replace("|", "\\|") for name, text in docstrings(kind).items()}
    hints = get_type_hints(kind)
    shown = names or tuple(field.name for field in dataclasses.fields(kind))
    rows = [
        f"| `--{name.replace('_', '-')}` | {value(getattr(fast, name))} | {value(getattr(paper, name))} | "
        f"{sentences[name]}{choices(hints[name])} |"
        for name in shown
    ]
    return "\n".join(["| setting | `fast` | `paper` | what it does |", "| :--- | :--- | :--- | :--- |", *rows])


def value(setting: object) -> str:
    return f"{setting:g}" if isinstance(setting, float) else str(setting)


def choices(hint: object) -> str:
    """Allowed values of a setting that is a choice."""
    return f" ({' · '.join(str(option) for option in get_args(hint))})" if get_origin(hint) is Literal else ""


if __name__ == "__main__":
    main()
