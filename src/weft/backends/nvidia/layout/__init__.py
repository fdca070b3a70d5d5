"""Layout assignment, the choice of MMA, shared memory and barriers."""
