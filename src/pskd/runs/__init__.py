"""What is on disk and between processes: the run folder and its files, checkpoints, weights, the plan, the process group."""
