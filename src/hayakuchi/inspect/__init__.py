"""What the compiler was given, and what came of the numbers."""
