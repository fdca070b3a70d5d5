"""What the language is built on: primitives that make tile IR, or compute at once in NumPy."""
