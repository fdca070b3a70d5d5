"""From the text of a `@jit` function to calls of a builder: statements, expressions, loops, calls."""
