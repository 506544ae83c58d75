from matplotlib.figure import Figure

from ricnet.report.figures import house_style
from ricnet.studies.theory.log_axes import use_log_scale


def test_powers_of_ten_are_plain_numbers() -> None:
    with house_style():
        figure = Figure()
        ax = figure.subplots()
        ax.plot([1, 1000], [1e-3, 1e-1])
        use_log_scale(ax, "x")
        use_log_scale(ax, "y")
        figure.draw_without_rendering()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    labels = {text.get_text() for axis in (ax.xaxis, ax.yaxis) for text in axis.get_ticklabels()}
    assert {"1", "10", "100", "1000", "0.001", "0.01", "0.1"} <= labels
