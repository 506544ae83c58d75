"""The paper as a client of ricnet: its tables and figures, one file each, further tables, and checks of its theory."""

from ricnet_paper import (
    fig1_architecture,
    fig2_dynamics,
    fig3_label_noise,
    fig4_calibration,
    fig5_adaptive,
    fig6_generalization,
    fig9_ablation,
    halting,
    peers,
    table1_results,
    table2_settings,
)
from ricnet_paper.kit import Item

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        table1_results.TABLE1,
        table2_settings.ITEM,
        table1_results.TABLE3,
        fig1_architecture.ITEM,
        fig2_dynamics.ITEM,
        fig3_label_noise.ITEM,
        fig4_calibration.FIG4,
        fig5_adaptive.ITEM,
        fig6_generalization.ITEM,
        fig4_calibration.FIG7,
        fig4_calibration.FIG8,
        fig9_ablation.ITEM,
        *peers.ITEMS,
        halting.ITEM,
    )
}

__all__ = ["ITEMS", "Item"]
