"""Mathematics: functions of tensors, without state or I/O."""
