"""Using a trained model: generation, attribution."""
