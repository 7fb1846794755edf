"""Models: arrays only. Nothing here knows of text, files or training."""
