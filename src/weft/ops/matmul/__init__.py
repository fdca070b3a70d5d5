"""Ops that multiply matrices: dot, attention, weights of few bits."""
