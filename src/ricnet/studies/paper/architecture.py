"""Figure 1: the network as it is built at this scale, with the shapes and sizes it really has.

`measure` builds it and passes one input through; `draw` needs only what was measured. No run is needed.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon
from torch import nn

from ricnet.methods import RIC
from ricnet.nets.encoders import ResNet
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, VERMILLION, styled
from ricnet.studies.cells import Benchmark, Runs
from ricnet.studies.paper.conditions import network_name
from ricnet.studies.paper.panels import SMALL, WIDTH
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Row, Rows, floats, number, pick
from ricnet.studies.scales import Scale
from ricnet.training.classifier import build_model
from ricnet.training.config import Config
from ricnet.training.presets import Facts, preset

INPUTS = {
    "digits": ((1, 8, 8), Facts(rows=1_213, classes=10, side=8)),
    "cifar10": ((3, 32, 32), Facts(rows=45_000, classes=10, side=32)),
}
"""The first benchmarks, whose files may not be here."""
HEIGHT = 3.0
"""Inches; the drawing is laid out in inches of paper from its lower left corner."""
STAGE = 0.34
"""Inches from one stage of the encoder to the next."""
TITLE: dict[str, Any] = {"fontsize": 7, "fontweight": "bold"}


def tabulate(scale: Scale, runs: Runs) -> Rows:
    benchmark = scale.benchmarks[0]
    shape, facts = INPUTS[benchmark.data]
    config = _configure(scale, benchmark, facts)
    network, _ = build_model(config, shape, facts.classes)
    assert isinstance(config.method, RIC)
    settings = {"classes": facts.classes, **{name: getattr(config.method, name) for name in _SETTINGS}}
    built = network_name(config.network.encoder, config.network.width, shape)
    return [
        {"part": "made", "name": f"scale {scale.name}: {built}, preset {scale.preset}"},
        _part("input", benchmark.label, shape),
        *measure(network, shape),
        *({"part": "setting", "name": name, "value": value} for name, value in settings.items()),
    ]


_SETTINGS = ("horizon", "c_min", "c_max", "alpha_floor")


def _configure(scale: Scale, benchmark: Benchmark, facts: Facts) -> Config:
    """The preset's configuration with what scale and benchmark change in the network and the method."""
    config = preset(scale.preset, "ric", facts)
    changes = dict(scale.changes) | dict(benchmark.changes)
    return dataclasses.replace(
        config, network=_changed(config.network, changes), method=_changed(config.method, changes)
    )


def _changed(part: Any, changes: dict[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: value for name, value in changes.items() if name in names})


def measure(network: Any, shape: tuple[int, ...]) -> Rows:
    """The parts of a RecurrentClassifier in the order of the data: stages of the encoder, GRU, heads."""
    encoder, refiner, encoder_size = network.backbone.encoder, network.refiner, network.backbone.embedding_size
    gates = nn.ModuleList([refiner.from_embedding, refiner.from_belief, refiner.from_thought])
    return [
        *_stage_rows(encoder, shape),
        _part("embedding", "encoder", (encoder_size,), encoder),
        _part("gru", "GRU", (refiner.size,), gates),
        _part("policy", "policy head", (refiner.policy.out_features,), refiner.policy),
        _part("concentration", "concentration head", (1,), refiner.concentration),
        _part("value", "value head", (1,), refiner.value),
    ]


def _part(part: str, name: str, shape: Sequence[int], module: nn.Module | None = None) -> Row:
    channels, height, width = (*shape, None, None)[:3]
    parameters = sum(p.numel() for p in module.parameters()) if module is not None else 0
    sides: Row = {"channels": channels, "height": height, "width": width}
    return {"part": part, "name": name, **sides, "parameters": parameters}


@dataclass(frozen=True)
class _Layer:
    name: str
    """What kind of layer opens a stage; empty for those that only follow one."""
    module: nn.Module
    shape: tuple[int, ...]


def _stage_rows(encoder: nn.Module, shape: tuple[int, ...]) -> Rows:
    """Layers whose outputs have the same shape are one stage, called after the layer that opens it."""
    layers = _run_layers(encoder, shape)
    stages = [list(stage) for _, stage in groupby(layers, key=lambda layer: (layer.name == "stem", layer.shape))]
    rows: Rows = []
    for stage in stages:
        name = f"{len(stage)} blocks" if stage[0].name == "block" else stage[0].name
        if name:
            module = nn.ModuleList([layer.module for layer in stage])
            rows.append(_part("stage", name, stage[-1].shape, module))
    return rows


def _run_layers(encoder: nn.Module, shape: tuple[int, ...]) -> list[_Layer]:
    """What comes out of each layer when one input goes through."""
    modules = [encoder.stem, *encoder.blocks] if isinstance(encoder, ResNet) else list(encoder.children())
    layers: list[_Layer] = []

    def note(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        name = "stem" if module is getattr(encoder, "stem", None) else _layer_name(module)
        layers.append(_Layer(name, module, tuple(output.shape[1:])))

    hooks = [module.register_forward_hook(note) for module in modules]
    was_training = encoder.training
    with torch.no_grad():
        encoder.eval()(torch.zeros(1, *shape))
    encoder.train(was_training)
    for hook in hooks:
        hook.remove()
    return layers


def _layer_name(module: nn.Module) -> str:
    if isinstance(module, nn.Conv2d):
        return f"conv {module.kernel_size[0]} × {module.kernel_size[1]}"
    if isinstance(module, nn.Linear):
        return "linear"
    return "" if not list(module.children()) else "block"


@styled
def draw(rows: Rows) -> Figure:
    figure = Figure(figsize=(WIDTH, HEIGHT))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    ax.axis("off")
    _draw_input(ax, rows)
    _draw_encoder(ax, rows)
    _draw_loop(ax, rows)
    _draw_words(ax, rows)
    _draw_arrows(ax)
    return figure


def _draw_input(ax: Axes, rows: Rows) -> None:
    (entry,) = pick(rows, part="input")
    _box(ax, (0.06, 1.25), (0.76, 0.7), [r"input $x$", str(entry["name"]), _shape(entry)], FAINT)


def _draw_encoder(ax: Axes, rows: Rows) -> None:
    stages, (embedding,) = pick(rows, part="stage"), pick(rows, part="embedding")
    height = STAGE * len(stages)
    top = 1.6 + height / 2
    _frame(ax, (1.0, top - height - 0.04), (1.88, height + 0.42), BLUE)
    ax.text(1.94, top + 0.2, f"encoder, {_parameters(embedding)}", ha="center", va="center", **TITLE)
    for i, stage in enumerate(stages):
        floor = top - STAGE * (i + 1) + 0.11
        _box(ax, (1.08, floor), (1.72, STAGE - 0.11), [], BLUE)
        middle = floor + (STAGE - 0.11) / 2
        ax.text(1.15, middle, f"{stage['name']}: {_shape(stage)}", va="center", fontsize=SMALL, zorder=3)
        ax.text(2.73, middle, _count(stage), ha="right", va="center", fontsize=SMALL, zorder=3)
        if i:
            _arrow(ax, (1.94, floor + STAGE), (1.94, floor + STAGE - 0.11), head=4)


def _draw_loop(ax: Axes, rows: Rows) -> None:
    (embedding,), (gru,), (value,) = (pick(rows, part=part) for part in ("embedding", "gru", "value"))
    both = [*pick(rows, part="policy"), *pick(rows, part="concentration")]
    heads: Row = {"parameters": int(floats(both, "parameters").sum())}
    space = rf"\in \mathbb{{R}}^{{{embedding['channels']}}}"
    _frame(ax, (3.46, 0.66), (3.48, 1.86), FAINT)
    ax.text(3.17, 1.65, rf"$e {space}$", ha="center", va="bottom", fontsize=SMALL, parse_math=True)
    _box(ax, (3.58, 1.25), (0.98, 0.7), ["GRU", rf"thought $\tau_t {space}$", _parameters(gru)], GREEN)
    _box(ax, (4.76, 1.76), (0.96, 0.62), ["policy head", r"$\mu_t,\ c_t$", _parameters(heads)], ORANGE)
    _box(ax, (4.76, 0.8), (0.96, 0.62), ["value head", r"$V(s_t)$", _parameters(value)], PURPLE)
    _box(ax, (5.88, 1.76), (1.0, 0.62), _policy_lines(rows), ORANGE)
    _diamond(ax, (6.38, 1.11), (0.98, 0.62), r"$V(s_t) < 0$ ?", PURPLE)
    _box(ax, (5.88, 0.1), (1.0, 0.34), [r"answer $a_{t-1}$"], VERMILLION)


def _policy_lines(rows: Rows) -> list[str]:
    low, high, floor = (_setting(rows, name) for name in ("c_min", "c_max", "alpha_floor"))
    bounds = rf"$c_t \in [{low:g}, {high:g}],\ \varepsilon = {floor:g}$"
    return [r"Dirichlet($\alpha_t$)", r"$\alpha_t = \mu_t \cdot c_t + \varepsilon$", bounds]


def _draw_words(ax: Axes, rows: Rows) -> None:
    title = rf"refinement, steps $t = 1, …, T$; $T = {_setting(rows, 'horizon'):.0f}$"
    ax.text(3.5, 0.5, title, va="center", parse_math=True, **TITLE)
    (made,) = pick(rows, part="made")
    ax.text(0.06, 0.15, str(made["name"]), va="center", fontsize=SMALL)
    small: dict[str, Any] = {"va": "center", "fontsize": SMALL, "parse_math": True}
    ax.text(3.5, 0.32, r"training: $a_t$ is sampled, all $T$ steps are taken", **small)
    ax.text(3.5, 0.15, r"inference: $a_t$ is the mean, until $V(s_t) < 0$", **small)
    ax.text(6.44, 1.59, r"no: $a_t$", **small)
    ax.text(6.32, 0.55, r"yes, from $t = 2$", ha="right", **small)
    feedback = r"the belief $a_t$ is fed back as $a_{t-1}$ of the next step; $a_0$ is uniform"
    ax.text(5.22, 2.86, feedback, ha="center", **small)
    ax.text(4.07, 0.82, r"$\tau_{t-1}$,  $\tau_0 = 0$", ha="center", **small)


def _draw_arrows(ax: Axes) -> None:
    _arrow(ax, (0.82, 1.6), (1.0, 1.6))
    _arrow(ax, (2.88, 1.6), (3.58, 1.6))
    _arrow(ax, (4.56, 1.73), (4.76, 2.07))
    _arrow(ax, (4.56, 1.47), (4.76, 1.11))
    _arrow(ax, (5.72, 2.07), (5.88, 2.07))
    _arrow(ax, (5.72, 1.11), (5.89, 1.11))
    _arrow(ax, (6.38, 1.42), (6.38, 1.76))
    _arrow(ax, (6.38, 0.8), (6.38, 0.44))
    _path(ax, [(6.38, 2.38), (6.38, 2.75), (4.07, 2.75), (4.07, 1.95)])
    _path(ax, [(4.33, 1.25), (4.33, 0.95), (3.81, 0.95), (3.81, 1.25)])


def _box(ax: Axes, corner: tuple[float, float], size: tuple[float, float], lines: Sequence[str], shade: str) -> None:
    """The first line names the box, unless it is the only one."""
    style: dict[str, Any] = {"facecolor": _pale(shade), "edgecolor": shade, "linewidth": 0.9}
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.05", zorder=2, **style))
    pitch = 0.165
    middle = corner[1] + size[1] / 2 + pitch * (len(lines) - 1) / 2
    for i, line in enumerate(lines):
        weight = "bold" if i == 0 and len(lines) > 1 else "normal"
        place = (corner[0] + size[0] / 2, middle - pitch * i)
        ax.text(*place, line, ha="center", va="center", fontsize=SMALL, fontweight=weight, parse_math=True, zorder=3)


def _diamond(ax: Axes, centre: tuple[float, float], size: tuple[float, float], text: str, shade: str) -> None:
    (x, y), (width, height) = centre, (size[0] / 2, size[1] / 2)
    corners = [(x - width, y), (x, y + height), (x + width, y), (x, y - height)]
    ax.add_patch(Polygon(corners, closed=True, facecolor=_pale(shade), edgecolor=shade, linewidth=0.9, zorder=2))
    ax.text(x, y, text, ha="center", va="center", fontsize=SMALL, parse_math=True, zorder=3)


def _frame(ax: Axes, corner: tuple[float, float], size: tuple[float, float], shade: str) -> None:
    style: dict[str, Any] = {"facecolor": "none", "edgecolor": shade, "linewidth": 0.7, "linestyle": (0, (4, 2))}
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.08", zorder=1, **style))


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], head: int = 7) -> None:
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": head, "shrinkA": 0, "shrinkB": 0}
    ax.add_patch(FancyArrowPatch(start, end, color=INK, linewidth=0.9, zorder=4, **style))


def _path(ax: Axes, corners: Sequence[tuple[float, float]]) -> None:
    x, y = zip(*corners[:-1], strict=True)
    ax.plot(x, y, color=INK, linewidth=0.9, zorder=1.5, solid_capstyle="butt")
    _arrow(ax, corners[-2], corners[-1])


def _pale(shade: str) -> tuple[float, float, float]:
    """The shade on white paper, at an eighth."""
    red, green, blue = (int(shade[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return (1 - (1 - red) / 8, 1 - (1 - green) / 8, 1 - (1 - blue) / 8)


def _shape(row: Row) -> str:
    return " × ".join(str(row[side]) for side in ("channels", "height", "width") if row.get(side) is not None)


def _count(row: Row) -> str:
    """Three digits: 21.3 M, 222 k, 513."""
    parameters = int(number([row], "parameters") or 0)
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return str(parameters)


def _parameters(row: Row) -> str:
    return f"{_count(row)} parameters"


def _setting(rows: Rows, name: str) -> float:
    return number(pick(rows, part="setting", name=name), "value") or 0.0


RECIPE = Recipe("fig1", "Actor-critic architecture of RIC", lambda scale: [], tabulate, draw)
