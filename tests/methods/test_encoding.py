import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ricnet.methods.encoding import CPU_BATCH, encode


@given(st.integers(1, 3 * CPU_BATCH + 1))
def test_batches_come_back_as_one_in_their_order(rows: int) -> None:
    seen: list[int] = []

    def network(batch: Tensor) -> Tensor:
        seen.append(len(batch))
        return batch.square()

    inputs = torch.arange(2.0 * rows).view(rows, 2)
    assert torch.equal(encode(network, inputs), inputs.square())
    assert max(seen) <= CPU_BATCH
    assert len(seen) == -(-rows // CPU_BATCH)
