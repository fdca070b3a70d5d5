"""Collectives of captured graphs and of programs of ranks: their schedule, their calls, their failures."""
