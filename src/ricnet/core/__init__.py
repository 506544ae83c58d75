"""Mathematics only: tensors in, tensors out, no state, no I/O."""
