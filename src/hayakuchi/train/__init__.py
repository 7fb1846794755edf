"""Training: a task says what a step is, the loop says when; state, checkpoints and metrics are objects of their own."""
