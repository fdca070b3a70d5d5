"""A captured FX graph as a function of the graph dialect."""
