"""Graph → tile: which ops become one kernel, and how it is scheduled."""
