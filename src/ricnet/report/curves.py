"""How the runs learned: validation accuracy, calibration and log-score, epoch by epoch."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ricnet.report.runs import RunRecord
from ricnet.report.style import colour, line_styles, styled

CURVES = {"accuracy": "validation accuracy", "ece": "validation ECE", "nll": "validation NLL"}


@styled
def training_figure(runs: Sequence[RunRecord]) -> Figure:
    figure = Figure(figsize=(7.2, 2.3 + 0.16 * ((len(runs) - 1) // 4)), layout="constrained")
    panels = figure.subplots(1, len(CURVES))
    for ax, (key, title) in zip(panels, CURVES.items(), strict=True):
        for run, line in zip(runs, line_styles(runs), strict=True):
            _draw_curve(ax, run, key, line)
        ax.set(title=title, xlabel="epoch")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        if key != "accuracy":
            ax.set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw_curve(ax: Axes, run: RunRecord, key: str, line: str) -> None:
    scores = {entry["epoch"]: (entry.get("val") or {}).get(key) for entry in run.metrics}
    points = {epoch: float(score) for epoch, score in scores.items() if score is not None}
    ax.plot(list(points), list(points.values()), line, color=colour(run), linewidth=1.1, label=run.label)
    selected = run.evaluation.get("selected_epoch")
    if isinstance(selected, int) and selected in points:
        ax.plot([selected], [points[selected]], "o", color=colour(run), markersize=4, markeredgecolor="white")
