"""Training, exactly: one loop for every task, in a run folder that survives being killed."""
