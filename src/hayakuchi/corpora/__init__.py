"""Sources of text: one reader a kind of source. No JAX here."""
