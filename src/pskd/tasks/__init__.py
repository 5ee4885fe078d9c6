"""What is learnt: what a batch, a loss and an evaluation are for each task."""
