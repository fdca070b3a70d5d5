"""Graph ops as tile ops: values that are tiles, and the outside of a kernel."""
