"""What holds without any other process; what several say to each other is in training/test_distributed.py."""

import pytest
import torch

from ricnet.processes import ALONE, Processes, Share


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 2, 15, 16])
def test_every_row_belongs_to_one_process(count: int, rows: int) -> None:
    slices = [Processes(rank, count).slice(rows) for rank in range(count)]
    assert [row for own in slices for row in range(rows)[own]] == list(range(rows))
    sizes = [own.stop - own.start for own in slices]
    assert max(sizes) - min(sizes) <= 1


def test_alone_nothing_is_sent_or_copied() -> None:
    rows, share = torch.rand(4, 3), ALONE.share(3)
    assert share == Share(3)
    assert share.mine(rows, 1) is share.whole(rows, 1) is ALONE.add(rows) is rows
    assert ALONE.agree(lambda: 5) == 5
    assert ALONE.collect("mine") == ["mine"]
    assert ALONE.any(True)
    assert not ALONE.any(False)
    assert ALONE.first


def test_ones_own_rows_are_found_along_any_axis() -> None:
    whole = torch.arange(10).view(2, 5)
    assert Share(5, Processes(1, 2)).mine(whole, -1).tolist() == [[2, 3, 4], [7, 8, 9]]
    assert Share(2, Processes(0, 2)).mine(whole, 0).tolist() == [[0, 1, 2, 3, 4]]
