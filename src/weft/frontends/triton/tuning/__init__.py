"""`@autotune` and `@heuristics`: configs, their cost and their times."""
