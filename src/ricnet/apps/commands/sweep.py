"""`ric sweep`: searches for better settings with Optuna."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from ricnet.apps.commands.train import Training, check_settings, given_methods, read_training
from ricnet.data import load as load_data
from ricnet.data import whole_path
from ricnet.errors import Interrupted, RicnetError, require, require_extra
from ricnet.io import short_name
from ricnet.models.config import DATA_SETTINGS, Config
from ricnet.models.locate import find_tokenizer
from ricnet.terminal import Narrator, say
from ricnet.training.api import pick_device
from ricnet.training.console import GO_ON
from ricnet.training.recipes import configure, default_oversize, for_encoder

if TYPE_CHECKING:
    import optuna

    from ricnet.studies.sweep import Sweep


@dataclass(frozen=True)
class SweepOptions(Training):
    """Search for better settings with Optuna (pip install 'ricnet[sweep]') by validation data alone. Started again, a
    sweep continues; started on several machines with one --storage, they share it. All trials share the given settings
    of `ric train`; `ric sweep --help-all` shows them."""

    method: str | None = None
    """Method to train, as in ric train."""
    trials: int = 20
    """Stop when the study has this many trials, counting those of other machines and earlier calls."""
    space: tuple[str, ...] = ()
    """What to search: lr=1e-4..1e-2:log epsilon=0.1..0.4 activation=relu,silu; by default the most important
    settings, around the values of the preset. The preset itself is the first trial if it is in the space."""
    metric: Literal["nll", "accuracy", "ece"] = "nll"
    """What to improve, on validation data."""
    storage: str | None = None
    """Database URL of the study; by default sqlite:///NAME.db."""
    name: str | None = None
    """Name of the study and of its folder of runs; by default sweep-DATA-METHOD, for a table
    sweep-DATA-TARGET-METHOD."""
    runs: Path = Path("runs")
    """Folder in which the folder of the study is made."""


def sweep(arguments: Sequence[str]) -> None:
    options, shared = read_sweep(arguments)
    require(options.trials >= 1, "trials", options.trials, "at least 1")
    require_extra("ric sweep", "sweep", "optuna")
    import optuna

    from ricnet.studies import sweep as sweeping

    optuna.logging.set_verbosity(logging.CRITICAL)  # we print its messages
    plan, console = _sweep(options, shared), Narrator(stderr=True)
    say((f"note: {note}" for note in plan.dataset.notes), console)
    name = plan.root.name
    storage = options.storage or f"sqlite:///{name}.db"
    study = sweeping.open_study(name, storage, options.metric, plan.base, plan.space)
    try:
        sweeping.search(study, plan, options.trials, console)
    except Interrupted:
        raise Interrupted(GO_ON) from None
    if plan.space.keys() & {"epochs", "batch_size"}:  # all trials use the weight average of `base`
        shared = {"average": plan.base.optimization.average} | shared
    _present(study, plan, options, shared, storage)


def read_sweep(arguments: Sequence[str]) -> tuple[SweepOptions, dict[str, Any]]:
    """The options, and the settings that all trials share."""
    options, settings, given = read_training(SweepOptions, arguments, "sweep")
    check_settings(settings, given_methods(given), Config())
    return options, settings


def _sweep(options: SweepOptions, shared: Mapping[str, Any]) -> "Sweep":
    from ricnet.studies.sweep import Sweep, default_space, parse_space

    shared = for_encoder(options.source, shared)
    wanted = default_oversize(options.preset, shared) | {k: shared[k] for k in DATA_SETTINGS if k in shared}
    tokenizer = find_tokenizer(shared.get("encoder", ""))
    dataset = load_data(options.source, data_dir=options.data_dir, tokenizer=tokenizer, **wanted)
    config = configure(dataset, options.method, options.preset, pick_device(options.device), **shared)
    base, method = replace(config, data=whole_path(options.source)), config.method.name
    space = parse_space(options.space, method) if options.space else default_space(base, shared)
    name = options.name or f"sweep-{short_name(whole_path(options.source))}-{method}"
    return Sweep(dataset, base, space, options.metric, options.runs / name, options.device)


def _present(
    study: "optuna.Study", plan: "Sweep", options: SweepOptions, shared: Mapping[str, Any], storage: str
) -> None:
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]
    if not done:
        raise RicnetError(f"no trial of {study.study_name} was finished; see the messages above.")
    best = sorted(done, key=lambda trial: trial.value or 0.0, reverse=options.metric == "accuracy")[:5]
    names = list(best[0].params)
    table = Table("trial", f"val {options.metric}", *names, box=None, padding=(0, 2, 0, 0))
    for trial in best:
        settings = [_shown(trial.params.get(name)) for name in names]
        table.add_row(str(trial.number), f"{trial.value:.4f}", *settings)
    console = Console()
    console.print(table)
    flags = [part for name, value in {**shared, **best[0].params}.items() for part in _flag(name, value)]
    again = ["ric", "train", options.source, "--method", plan.base.method.name, "--preset", options.preset, *flags]
    where = options.runs / study.study_name / str(best[0].user_attrs.get("folder"))
    words = f"\nstudy    {storage}\nbest     {where}\nagain    {shlex.join(again)}"
    say(words.splitlines(), console)


def _flag(name: str, value: Any) -> list[str]:
    dashed = name.replace("_", "-")
    return [f"--{'' if value else 'no-'}{dashed}"] if isinstance(value, bool) else [f"--{dashed}", str(value)]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
