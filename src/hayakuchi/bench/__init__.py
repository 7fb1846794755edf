"""`bench`: the recipe's own training step, timed over a grid of settings."""
