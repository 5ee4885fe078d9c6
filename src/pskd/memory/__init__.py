"""Where past predictions come from: a bank of stored rows, or a frozen copy of the model."""
