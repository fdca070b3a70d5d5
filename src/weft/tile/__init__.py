"""The tile dialect: one kernel, a grid of programs over tiles."""
