"""Figure 1: the network as it is built at this scale, with the shapes and sizes it really has. No run is needed."""

import dataclasses
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon
from torch import nn

from ricnet.methods import RIC
from ricnet.nets.encoders import ResNet
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, VERMILLION, styled
from ricnet.studies.experiments import Runs, Scale
from ricnet.studies.paper import kit
from ricnet.studies.paper.kit import Item
from ricnet.training.classifier import build_model
from ricnet.training.recipes import Facts, preset

INPUTS = {
    "digits": ((1, 8, 8), Facts(rows=1_213, classes=10, side=8)),
    "cifar10": ((3, 32, 32), Facts(rows=45_000, classes=10, side=32)),
}
"""The first benchmarks, whose files may not be here."""
HEIGHT = 3.0
"""Inches; the drawing is laid out in inches of paper from its lower left corner."""
STAGE = 0.34
"""Inches from one stage of the encoder to the next."""
Point = tuple[float, float]


def table(scale: Scale, runs: Runs) -> pd.DataFrame:
    """The parts of the network in the order of the data, and the settings that the drawing names."""
    benchmark = scale.benchmarks[0]
    shape, facts = INPUTS[benchmark.data]
    config = preset(scale.preset, None, facts)
    changes = dict(scale.changes) | dict(benchmark.changes)
    network, method = (_changed(part, changes) for part in (config.network, config.method))
    assert isinstance(method, RIC)
    model, _ = build_model(dataclasses.replace(config, network=network, method=method), shape, facts.classes)
    built = kit.network_name(network.encoder, network.width, shape)
    settings = {"classes": facts.classes, "horizon": method.horizon, "c_min": method.c_min, "c_max": method.c_max}
    settings["alpha_floor"] = method.alpha_floor
    rows = [
        {"part": "made", "name": f"scale {scale.name}: {built}, preset {scale.preset}"},
        _part("input", benchmark.label, shape),
        *measure(model, shape),
        *({"part": "setting", "name": name, "value": value} for name, value in settings.items()),
    ]
    return pd.DataFrame(rows)


def _changed(part: Any, changes: dict[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: value for name, value in changes.items() if name in names})


def measure(network: Any, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """The parts of a RecurrentClassifier: stages of the encoder, GRU, heads."""
    encoder, refiner = network.backbone.encoder, network.refiner
    gates = nn.ModuleList([refiner.from_embedding, refiner.from_belief, refiner.from_thought])
    return [
        *_stages(encoder, shape),
        _part("embedding", "encoder", (network.backbone.embedding_size,), encoder),
        _part("gru", "GRU", (refiner.size,), gates),
        _part("policy", "policy head", (refiner.policy.out_features,), refiner.policy),
        _part("concentration", "concentration head", (1,), refiner.concentration),
        _part("value", "value head", (1,), refiner.value),
    ]


def _part(part: str, name: str, shape: Sequence[int], module: nn.Module | None = None) -> dict[str, Any]:
    sides = dict(zip(("channels", "height", "width"), shape, strict=False))
    parameters = sum(p.numel() for p in module.parameters()) if module is not None else 0
    return {"part": part, "name": name, **sides, "parameters": parameters}


def _stages(encoder: nn.Module, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """Layers whose outputs have the same shape are one stage, called after the layer that opens it."""
    modules = [encoder.stem, *encoder.blocks] if isinstance(encoder, ResNet) else list(encoder.children())
    layers: list[tuple[str, nn.Module, tuple[int, ...]]] = []

    def note(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        name = "stem" if module is getattr(encoder, "stem", None) else _layer_name(module)
        layers.append((name, module, tuple(output.shape[1:])))

    hooks = [module.register_forward_hook(note) for module in modules]
    was_training = encoder.training
    with torch.no_grad():
        encoder.eval()(torch.zeros(1, *shape))
    encoder.train(was_training)
    for hook in hooks:
        hook.remove()
    rows = []
    for _, group in groupby(layers, key=lambda layer: (layer[0] == "stem", layer[2])):
        stage = list(group)
        opens = stage[0][0]
        if opens:
            name = f"{len(stage)} blocks" if opens == "block" else opens
            rows.append(_part("stage", name, stage[-1][2], nn.ModuleList([module for _, module, _ in stage])))
    return rows


def _layer_name(module: nn.Module) -> str:
    """Of a layer that can open a stage; empty for one that only follows another."""
    if isinstance(module, nn.Conv2d):
        return f"conv {module.kernel_size[0]} × {module.kernel_size[1]}"
    if isinstance(module, nn.Linear):
        return "linear"
    return "block" if list(module.children()) else ""


@styled
def draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(kit.WIDTH, HEIGHT))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, kit.WIDTH), ylim=(0, HEIGHT))
    ax.axis("off")
    parts = table[table.part != "stage"].drop_duplicates("part").set_index("part")
    settings = table[table.part == "setting"].set_index("name")["value"]
    _box(ax, (0.06, 1.25), (0.76, 0.7), [r"input $x$", parts.name["input"], _shape(parts.loc["input"])], FAINT)
    _draw_encoder(ax, table[table.part == "stage"], _count(parts.parameters["embedding"]))
    _draw_loop(ax, parts, settings)
    _draw_words(ax, parts.name["made"], settings["horizon"])
    return figure


def _draw_encoder(ax: Axes, stages: pd.DataFrame, parameters: str) -> None:
    height = STAGE * len(stages)
    top = 1.6 + height / 2
    _arrow(ax, (0.82, 1.6), (1.0, 1.6))
    _frame(ax, (1.0, top - height - 0.04), (1.88, height + 0.42), BLUE)
    title = f"encoder, {parameters} parameters"
    ax.text(1.94, top + 0.2, title, ha="center", va="center", fontsize=7, fontweight="bold")
    for i, (_, stage) in enumerate(stages.iterrows()):
        floor = top - STAGE * (i + 1) + 0.11
        _box(ax, (1.08, floor), (1.72, STAGE - 0.11), [], BLUE)
        small: dict[str, Any] = {"va": "center", "fontsize": kit.SMALL, "zorder": 3}
        middle = floor + (STAGE - 0.11) / 2
        ax.text(1.15, middle, f"{stage['name']}: {_shape(stage)}", **small)
        ax.text(2.73, middle, _count(stage["parameters"]), ha="right", **small)
        if i:
            _arrow(ax, (1.94, floor + STAGE), (1.94, floor + STAGE - 0.11), head=4)


def _draw_loop(ax: Axes, parts: pd.DataFrame, settings: pd.Series) -> None:
    space = rf"\in \mathbb{{R}}^{{{parts.channels['embedding']:.0f}}}"
    size = {name: f"{_count(count)} parameters" for name, count in parts.parameters.dropna().items()}
    heads = f"{_count(parts.parameters['policy'] + parts.parameters['concentration'])} parameters"
    bounds = rf"$c_t \in [{settings['c_min']:g}, {settings['c_max']:g}],\ \varepsilon = {settings['alpha_floor']:g}$"
    policy = [r"Dirichlet($\alpha_t$)", r"$\alpha_t = \mu_t \cdot c_t + \varepsilon$", bounds]
    _frame(ax, (3.46, 0.66), (3.48, 1.86), FAINT)
    ax.text(3.17, 1.65, rf"$e {space}$", ha="center", va="bottom", fontsize=kit.SMALL, parse_math=True)
    _box(ax, (3.58, 1.25), (0.98, 0.7), ["GRU", rf"thought $\tau_t {space}$", size["gru"]], GREEN)
    _box(ax, (4.76, 1.76), (0.96, 0.62), ["policy head", r"$\mu_t,\ c_t$", heads], ORANGE)
    _box(ax, (4.76, 0.8), (0.96, 0.62), ["value head", r"$V(s_t)$", size["value"]], PURPLE)
    _box(ax, (5.88, 1.76), (1.0, 0.62), policy, ORANGE)
    diamond = [(5.89, 1.11), (6.38, 1.42), (6.87, 1.11), (6.38, 0.8)]
    ax.add_patch(Polygon(diamond, closed=True, facecolor=_pale(PURPLE), edgecolor=PURPLE, linewidth=0.9, zorder=2))
    ax.text(6.38, 1.11, r"$V(s_t) < 0$ ?", ha="center", va="center", fontsize=kit.SMALL, parse_math=True, zorder=3)
    _box(ax, (5.88, 0.1), (1.0, 0.34), [r"answer $a_{t-1}$"], VERMILLION)
    _arrow(ax, (2.88, 1.6), (3.58, 1.6))
    _arrow(ax, (4.56, 1.73), (4.76, 2.07))
    _arrow(ax, (4.56, 1.47), (4.76, 1.11))
    _arrow(ax, (5.72, 2.07), (5.88, 2.07))
    _arrow(ax, (5.72, 1.11), (5.89, 1.11))
    _arrow(ax, (6.38, 1.42), (6.38, 1.76))
    _arrow(ax, (6.38, 0.8), (6.38, 0.44))
    _arrow(ax, (6.38, 2.38), (6.38, 2.75), (4.07, 2.75), (4.07, 1.95))
    _arrow(ax, (4.33, 1.25), (4.33, 0.95), (3.81, 0.95), (3.81, 1.25))


def _draw_words(ax: Axes, made: str, horizon: float) -> None:
    title = rf"refinement, steps $t = 1, …, T$; $T = {horizon:.0f}$"
    ax.text(3.5, 0.5, title, va="center", parse_math=True, fontsize=7, fontweight="bold")
    ax.text(0.06, 0.15, made, va="center", fontsize=kit.SMALL)
    small: dict[str, Any] = {"va": "center", "fontsize": kit.SMALL, "parse_math": True}
    ax.text(3.5, 0.32, r"training: $a_t$ is sampled, all $T$ steps are taken", **small)
    ax.text(3.5, 0.15, r"inference: $a_t$ is the mean, until $V(s_t) < 0$", **small)
    ax.text(6.44, 1.59, r"no: $a_t$", **small)
    ax.text(6.32, 0.55, r"yes, from $t = 2$", ha="right", **small)
    feedback = r"the belief $a_t$ is fed back as $a_{t-1}$ of the next step; $a_0$ is uniform"
    ax.text(5.22, 2.86, feedback, ha="center", **small)
    ax.text(4.07, 0.82, r"$\tau_{t-1}$,  $\tau_0 = 0$", ha="center", **small)


def _box(ax: Axes, corner: Point, size: Point, lines: Sequence[str], colour: str) -> None:
    """The first line names the box, unless it is the only one."""
    style: dict[str, Any] = {"facecolor": _pale(colour), "edgecolor": colour, "linewidth": 0.9}
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.05", zorder=2, **style))
    pitch = 0.165
    top = corner[1] + size[1] / 2 + pitch * (len(lines) - 1) / 2
    for i, line in enumerate(lines):
        weight = "bold" if i == 0 and len(lines) > 1 else "normal"
        place = (corner[0] + size[0] / 2, top - pitch * i)
        ax.text(
            *place, line, ha="center", va="center", fontsize=kit.SMALL, fontweight=weight, parse_math=True, zorder=3
        )


def _frame(ax: Axes, corner: Point, size: Point, colour: str) -> None:
    style: dict[str, Any] = {"facecolor": "none", "edgecolor": colour, "linewidth": 0.7, "linestyle": (0, (4, 2))}
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.08", zorder=1, **style))


def _arrow(ax: Axes, *corners: Point, head: int = 7) -> None:
    """Along the corners, with its head at the last."""
    if len(corners) > 2:
        ax.plot(*zip(*corners[:-1], strict=True), color=INK, linewidth=0.9, zorder=1.5, solid_capstyle="butt")
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": head, "shrinkA": 0, "shrinkB": 0}
    ax.add_patch(FancyArrowPatch(*corners[-2:], color=INK, linewidth=0.9, zorder=4, **style))


def _pale(colour: str) -> tuple[float, float, float]:
    """The colour on white paper, at an eighth."""
    red, green, blue = (1 - (1 - part) / 8 for part in to_rgb(colour))
    return red, green, blue


def _shape(part: pd.Series) -> str:
    return " × ".join(f"{side:.0f}" for side in part[["channels", "height", "width"]].dropna())


def _count(parameters: float) -> str:
    """Three digits: 21.3 M, 222 k, 513."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return f"{parameters:.0f}"


ITEM = Item("fig1", "Actor-critic architecture of RIC", lambda scale: [], table, draw)
