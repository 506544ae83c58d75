"""Train a classifier: `ricnet.train` and `ric train` call `train_in_folder`, which reads data, chooses settings, trains
and finishes. `run` trains a configuration in a folder, new or resumed; `train_in_memory` without a folder.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.policies import building_with, drawing_from
from ricnet.data import Dataset, columns_from_json, whole_path
from ricnet.data.dataset import copies_note
from ricnet.data.texts import Tokenizer
from ricnet.distributed import Processes, first_on_each_machine, launched, own_gpu, together
from ricnet.errors import Interrupted, RicnetError, in_python, setting, spelled_in_python
from ricnet.evaluation.choices import chosen_words
from ricnet.io import Unwritable, read_json, whole_name
from ricnet.models.classifier import Classifier, autocast_dtype, build_model, encoder_weights, settle_horizon
from ricnet.models.config import Config, from_json
from ricnet.models.loading import load
from ricnet.models.locate import (
    describe_encoder,
    find_encoder,
    find_tokenizer,
    keep_encoder,
    named_encoder,
    read_encoder,
)
from ricnet.models.run import RunFolder, read_config
from ricnet.nets.backbone import known
from ricnet.nets.encoders import is_pretrained
from ricnet.nets.pretrained import TextEncoder
from ricnet.training.advice import advice
from ricnet.training.callbacks import Callback
from ricnet.training.console import Narrator, announcement, augmentation_note, faster, limited, say
from ricnet.training.features import featured
from ricnet.training.finish import fit
from ricnet.training.networks import draws_globally, refuse_other_kind
from ricnet.training.request import Request, default_folder, for_encoder
from ricnet.training.state import impossible, restore, restore_own
from ricnet.training.tracking import Track, Tracking, require_tracker
from ricnet.training.trainer import Trainer

MAX_NOTES, MAX_HINTS = 3, 4
"""Lines of notes and of hints that `ric train` prints; the page of the run has all of them."""


def train(
    data: Any = None,
    *,
    target: str | None = None,
    test: Any = None,
    method: str | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    encoder: str | nn.Module | None = None,
    device: str = "auto",
    overwrite: bool = False,
    resume: bool = False,
    track: Track = "none",
    data_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> Classifier:
    """Train a classifier and return it; `changes` are any settings of `ric train --help-all`, such as epochs=30.

    `data` is what the command line takes (a name or a path, by default digits), a data frame, or a Dataset of your own;
    `target` the column of a table that holds the classes; `test` a table or data frame of test rows, by default taken
    from the data; `preset` is fast by default, and `method` then ric-on-policy, with exits ric-closed-form, with the
    preset paper ric (Algorithm 1); `encoder` a name or any module from a batch of inputs to a batch of vectors (without
    dropout: the snapshot and the network must see the same). The run is written to `out`, by default
    runs/DATA-METHOD-seedN. With `resume` an interrupted run continues with its own settings, or a new one starts if
    there is none; with more `epochs` and a constant schedule a finished run is extended. `track="tensorboard"` writes
    curves; `callbacks` are called during training (see `ricnet.Callback`). Random numbers depend on `seed` alone;
    torch's random state is not changed.
    """
    module = encoder if isinstance(encoder, nn.Module) else None
    if encoder is not None:
        changes["encoder"] = "custom" if module is not None else encoder
    if isinstance(test, str | Path):
        changes["test"], test = whole_path(str(test)), None
    with spelled_in_python():
        folder = train_in_folder(
            Request(data, changes, target, method, preset, test=test),
            out=out,
            encoder=module,
            device=device,
            overwrite=overwrite,
            resume=resume,
            track=track,
            data_dir=data_dir,
            callbacks=callbacks,
        )
        return load(folder.path, str(pick_device(device)), module)


def train_in_folder(
    request: Request,
    *,
    out: str | Path | None,
    encoder: nn.Module | None = None,
    device: str,
    overwrite: bool,
    resume: bool,
    track: Track,
    checkpoint_seconds: float = 60.0,
    data_dir: str | Path | None,
    callbacks: Sequence[Any] = (),
    spell: Callable[[str], str] = in_python,
    present: Callable[[RunFolder], None] | None = None,
) -> RunFolder:
    """Train from a request to a finished run. Settings that the request leaves open come from the run that is resumed,
    or from the recipe for this data and device. `spell` writes settings for Python or the command line; `present`
    prints the result."""
    place = pick_device(device)
    require_tracker(track)
    _check_callbacks(callbacks)
    with together(place) as processes:
        console = Narrator(stderr=True, quiet=not processes.first)
        folder = RunFolder(out or default_folder(*request.names))
        request, began = _request_for(folder, request, resume, processes)
        if began and request.start == began and processes.broadcast(lambda: folder.finished):
            say([spell(_nothing_left(folder))], console)
            return folder

        with first_on_each_machine(processes):
            encoder, tokenizer = _reader(request.encoder, encoder, folder if began else None)
            dataset = request.dataset(data_dir, tokenizer)
        if processes.first:
            dataset = replace(dataset, notes=(*dataset.notes, *copies_note(dataset)))

        config, notes = _choose(request, dataset, place, encoder, processes, resumed=began is not None)
        if processes.first and not began:
            folder.refuse_if_taken(overwrite)  # after all other checks
        if resume and not began:
            notes.insert(0, f"{folder.path} holds no run yet; this one starts anew.")
        _announce(config, dataset, notes, processes.count, place, console, spell, folder if present else None)

        hint = None if began else faster(config, dataset, place)
        run(
            config,
            dataset,
            folder,
            place,
            overwrite=overwrite,
            resume=began is not None,
            encoder=encoder,
            track=track,
            checkpoint_seconds=checkpoint_seconds,
            console=console,
            callbacks=callbacks,
            hint=hint and spell(hint),
            keep_state=True,
        )
        if processes.first:
            _conclude(folder, config, dataset, spell, present)
        processes.any(False)  # wait until the first has written everything
    return folder


def _request_for(
    folder: RunFolder, request: Request, resume: bool, processes: Processes
) -> tuple[Request, Config | None]:
    """The request with the settings of a resumed run, and those settings; or with those of its encoder, and None."""
    if isinstance(named := request.changes.get("encoder"), str):
        request = replace(request, changes={**request.changes, "encoder": whole_name(named)})
    if processes.first:
        folder.refuse_if_held()
    began = processes.broadcast(partial(_stored, folder)) if resume else None
    if began is not None:
        return request.resumed(began, folder), began
    with first_on_each_machine(processes):
        return replace(request, changes=for_encoder(request.what, request.changes)), None


def _choose(
    request: Request,
    dataset: Dataset,
    device: torch.device,
    encoder: nn.Module | None,
    processes: Processes,
    resumed: bool,
) -> tuple[Config, list[str]]:
    """The settings of the run, and notes about them."""
    notes: list[str] = []
    if resumed and request.start is not None:
        return request.start, notes
    config = processes.broadcast(lambda: request.config(dataset, device, notes, encoder, processes.count))
    return config, [*notes, *augmentation_note(config, dataset)]


def _announce(
    config: Config,
    dataset: Dataset,
    notes: Sequence[str],
    processes: int,
    device: torch.device,
    console: Console,
    spell: Callable[[str], str],
    reported: RunFolder | None,
) -> None:
    """Print notes on settings and data, then what is trained. The page of a run has all notes on the data."""
    lines = [spell(f"note: {note}") for note in (*notes, *dataset.notes)]
    if reported is not None:
        lines = limited(lines, MAX_NOTES, f"{reported.report.name}")
    say([*lines, spell(announcement(config, dataset, device, processes))], console)


def _stored(folder: RunFolder) -> Config | None:
    """The settings of the run in a folder, or None."""
    return from_json(read_config(folder.path).get("config"), str(folder.config)) if folder.begun else None


def _nothing_left(folder: RunFolder) -> str:
    anew = f"start anew with {setting('overwrite', True)}, or in another {setting('out')}"
    more = f"go on with more {setting('epochs')}, or " if folder.state.is_file() else ""
    return f"{folder.path} is finished: nothing is left to resume; {more}{anew}."


def _reader(name: str, own: nn.Module | None, resumed: RunFolder | None) -> tuple[nn.Module | None, Tokenizer | None]:
    """The pretrained or given encoder, if any, and its tokenizer; a resumed run has its own."""
    encoder = own
    if own is None and is_pretrained(name):
        encoder = find_encoder(name) if resumed is None else _began_with(resumed)
    if not isinstance(encoder, TextEncoder):
        return encoder, None
    return encoder, find_tokenizer(name) if resumed is None else _kept_tokenizer(resumed)


def _began_with(folder: RunFolder) -> nn.Module:
    """The pretrained encoder that a run began with."""
    return read_encoder(read_config(folder.path).get("encoder"), folder)


def _kept_tokenizer(folder: RunFolder) -> Tokenizer | None:
    """The tokenizer of a run."""
    described = read_config(folder.path).get("data")
    entry = described.get("columns") if isinstance(described, dict) else None
    text = None if entry is None else columns_from_json(entry, str(folder.config)).text
    return None if text is None else text.tokenizer


def _conclude(
    folder: RunFolder,
    config: Config,
    dataset: Dataset,
    spell: Callable[[str], str],
    present: Callable[[RunFolder], None] | None,
) -> None:
    try:
        evaluation = read_json(folder.evaluation)
        found = [spell(line) for line in advice(evaluation, folder.validation_nll(), config, dataset)]
        if present is None:
            say([*chosen_words(evaluation), *found])
        else:
            present(folder)
            say(limited(found, MAX_HINTS, folder.report.name))
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the run in {folder.path} is finished.") from None


def run(
    config: Config,
    dataset: Dataset,
    folder: RunFolder,
    device: torch.device,
    *,
    overwrite: bool = False,
    resume: bool = False,
    encoder: nn.Module | None = None,
    track: Track = "none",
    checkpoint_seconds: float = 60.0,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
    hint: str | None = None,
    keep_state: bool = False,
) -> dict[str, Any]:
    """Train a configuration in a folder, new or resumed; return the evaluation. The caller's random state is kept.

    `hint` is printed if training takes long. With `keep_state` the last checkpoint is kept if the run can be extended.
    """
    tell = partial(_tell, console or Narrator(stderr=True))
    pretrained = config.network.pretrained
    if pretrained and encoder is None:
        encoder = _began_with(folder) if resume else find_encoder(config.network.encoder)
    config = settle_horizon(config, dataset.input_shape, encoder)
    with (
        isolated_rng(config, device, encoder),
        together(device) as processes,
        folder.held(tell) if processes.first else nullcontext(),
    ):
        first = processes.first
        if first and resume:
            folder.check_resumable(config, dataset)
        elif first:
            folder.refuse_if_taken(overwrite)
        mine = folder if first else None
        with first_on_each_machine(processes):
            data = _as_features(config, dataset, encoder, device, console)
        own = _for_head(config, encoder, dataset)
        followers = [*([Tracking(folder)] if first and track == "tensorboard" else []), *callbacks]
        trainer = Trainer(config, data, mine, device, own, checkpoint_seconds, console, processes, hint, followers)
        if first and not resume:
            # after the network is built: an impossible configuration leaves no folder
            described = describe_encoder(encoder) if pretrained and encoder is not None else None
            folder.begin(config, dataset, device, encoder=described)
            if pretrained and encoder is not None:
                keep_encoder(encoder, folder)
        with _saved_so_far(folder):
            trainer.keeps_state = keep_state and config.optimization.extendable
            if resume:
                _restore(trainer, folder, processes, tell)
            evaluation = trainer.run()
        if first and not (config.network.freeze or trainer.keeps_state):  # only resuming needs it
            folder.encoder.unlink(missing_ok=True)
        return evaluation


def _as_features(
    config: Config, dataset: Dataset, encoder: nn.Module | None, device: torch.device, console: Console | None
) -> Dataset:
    """The dataset, encoded if the encoder is frozen."""
    if not config.network.freeze or encoder is None:
        return dataset
    refuse_other_kind(encoder, dataset, config)
    settings = config.optimization
    varied = replace(dataset.augmentation, cutout=settings.cutout)
    copies = settings.augmented_copies if settings.augment and dataset.is_image else 0
    return featured(dataset, encoder, device, copies, varied, console, config.network.exits)


def _for_head(config: Config, encoder: nn.Module | None, dataset: Dataset) -> nn.Module | None:
    """Encoder of the network that is trained; for a frozen one None, or with exits the shapes of its stages."""
    if not config.network.freeze or encoder is None:
        return encoder
    exits = config.network.exits
    return None if exits == "none" else known(encoder, dataset.input_shape, exits)


def _tell(console: Console, sentence: str) -> None:
    say([f"note: {sentence}"], console)


@contextmanager
def _saved_so_far(folder: RunFolder) -> Iterator[None]:
    """Say how to resume if the run is interrupted outside the training loop, which saves by itself."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped; what was saved before is whole. "
            f"Go on with: ric train --out {shlex.quote(str(folder.path))} --resume"
        ) from None
    except Unwritable as problem:
        raise RicnetError(
            f"{problem.sentence} What was saved before is whole: go on with {setting('resume', True)}."
        ) from problem


def _restore(trainer: Trainer, folder: RunFolder, processes: Processes, tell: Callable[[str], None]) -> None:
    state = processes.broadcast(partial(folder.read_state, tell))
    if state is None:
        if processes.first:
            tell(f"{folder.path} was stopped before its first checkpoint, so that it starts from the beginning.")
            folder.keep_metrics_until(0)
        return
    try:
        if (wrong := impossible(trainer, state)) is not None:
            anew = setting("overwrite", True)
            raise RicnetError(f"{folder.state} does not belong to this run ({wrong}); start anew with {anew}.")
        restore(trainer, state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RicnetError(
            f"{folder.state} is of another network or another version of ricnet; "
            f"resume with what the run began with, or start anew with {setting('overwrite', True)}."
        ) from error
    restore_own(trainer, state)


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    for callback in callbacks:
        if not isinstance(callback, Callback):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else f"a {type(callback).__name__}"
            raise RicnetError(f"{setting('callbacks')} holds {kind}; give instances of subclasses of ricnet.Callback.")


def train_in_memory(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    *,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> tuple[Classifier, int]:
    """Train without folder, checkpoint or evaluation; return the classifier and its number of epochs. The caller's
    random state is kept."""
    encoder = named_encoder(config.network.encoder) if encoder is None else encoder
    with isolated_rng(config, device, encoder):
        config = settle_horizon(config, dataset.input_shape, encoder)
        data = _as_features(config, dataset, encoder, device, console)
        own = _for_head(config, encoder, dataset)
        trainer = Trainer(config, data, None, device, own, console=console)
        trainer.train()
        with building_with(trainer.generator):
            # a new network: compiled code cannot be copied or pickled
            model = _trained(config, data, own, trainer.best["weights"], device)
        with drawing_from(trainer.generator):
            fitted = fit(config, model, data.val)
        if config.network.freeze:
            with building_with(trainer.generator):
                model = _trained(config, dataset, encoder, trainer.best["weights"], device)
    rule = fitted.halting
    method = config.method.stopping_by(rule.halt_threshold, rule.max_steps) if rule else config.method
    shape, names = dataset.input_shape, dataset.class_names
    classifier = Classifier(config, method, model, shape, names, fitted.reading.temperature, budgets=fitted.budgets)
    return classifier, trainer.update // trainer.updates_per_epoch


def _trained(
    config: Config, dataset: Dataset, encoder: nn.Module | None, weights: dict[str, Tensor], device: torch.device
) -> nn.Module:
    model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names), encoder)
    model.load_state_dict(weights | encoder_weights(model))
    backbone.autocast = autocast_dtype(config.optimization.precision, device)
    return model.to(device).eval()


@contextmanager
def isolated_rng(config: Config, device: torch.device, encoder: nn.Module | None) -> Iterator[None]:
    """Restore the caller's random state, current device and choice of kernels; turn out-of-memory into a RicnetError.

    A run with its own generator does not touch torch's. One that draws globally seeds the global generator while it
    runs; other threads that draw from it at the same time change the run's numbers, and the run theirs."""
    on_gpu = device.type == "cuda"
    shared = draws_globally(config, encoder, device)
    forked = torch.random.fork_rng([device] if on_gpu else []) if shared else nullcontext()
    with forked, torch.cuda.device(device if on_gpu else -1):
        before = torch.backends.cudnn.benchmark
        try:
            yield
        except torch.OutOfMemoryError:
            raise RicnetError(
                f"{device} has too little memory for batches of {config.optimization.batch_size}; "
                f"lower {setting('batch_size')}, {setting('resolution')} or {setting('width')}."
            ) from None
        finally:
            torch.backends.cudnn.benchmark = before


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return own_gpu() if torch.cuda.is_available() else torch.device("cpu")
    if name == "cuda" and torch.cuda.is_available():
        return own_gpu()
    asked = setting("device", name)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RicnetError(f"{asked} is unknown; use auto, cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise RicnetError(f"{asked} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and launched().count > 1:
        cuda = setting("device", "cuda")
        raise RicnetError(f"{asked}: with torchrun each process takes a GPU of its own; use {cuda}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RicnetError(f"{asked}: this machine has {torch.cuda.device_count()} CUDA devices; use another.")
    return device
