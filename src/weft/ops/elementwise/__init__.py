"""Ops whose elements are functions of those at the same place: arithmetic, comparisons, casts, activations."""
