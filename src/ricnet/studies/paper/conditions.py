"""Under what conditions the runs of a table or figure were made: scale, network, inputs, epochs, preset.

They stand in every row and in every note, so that no number of a small scale can be taken for one of the paper's.
"""

from collections.abc import Callable, Sequence

from ricnet.nets.encoders import choose_encoder
from ricnet.report.runs import RunRecord
from ricnet.report.words import epochs, listing
from ricnet.studies.paper.rows import Row, Rows, distinct
from ricnet.studies.scales import Scale

GIVEN = "given runs"
"""The name of a scale whose runs were taken as they were found."""


def conditions_of(scale: Scale, runs: Sequence[RunRecord]) -> Row:
    """Those of one cell, whose runs differ in their seeds alone; without runs only the scale is known."""
    if not runs:
        return {"scale": scale.name}
    config, shape = runs[0].config, tuple(int(side) for side in runs[0].data["input_shape"])
    return {
        "scale": scale.name,
        "network": network_name(config["network"]["encoder"], config["network"]["width"], shape),
        "input": f"{shape[0]} features" if len(shape) == 1 else " × ".join(str(side) for side in shape),
        "epochs": int(config["optimization"]["epochs"]),
        "preset": str(config["preset"]),
    }


def network_name(encoder: str, width: float, shape: tuple[int, ...]) -> str:
    """The encoder as it is built: `auto` depends on the inputs."""
    return choose_encoder(encoder, shape) + (f", width {width:g}" if width != 1 else "")


def conditions(rows: Rows) -> str:
    """All rows' conditions in one sentence; where they differ, whose are which."""
    parts = [
        _differing(rows, "network", "benchmark"),
        _differing(rows, "input", "benchmark", lambda shape: f"inputs {shape}"),
        _differing(rows, "epochs", "system", lambda count: epochs(int(count))),
        _differing(rows, "preset", "system", lambda name: f"preset {name}"),
    ]
    names, known = listing(distinct(rows, "scale")), ", ".join(filter(None, parts))
    head = "As run" if names == GIVEN else f"Scale {names}"
    return f"{head}: {known}" if known else head


def _differing(rows: Rows, name: str, owner: str, form: Callable[[str], str] = str) -> str:
    values = distinct(rows, name)
    if len(values) < 2:
        return form(values[0]) if values else ""
    owners = {value: distinct([row for row in rows if str(row.get(name)) == value], owner) for value in values}
    return listing([f"{form(value)} ({listing(names)})" for value, names in owners.items()])
