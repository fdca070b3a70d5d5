"""Weft's own targets: each ties its list of passes, its backend and its way to run programs together."""
