"""What is on disk and between processes: run folder, checkpoints, weights, the order of the data, process group."""
