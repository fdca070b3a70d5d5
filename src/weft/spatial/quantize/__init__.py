"""From a graph of floats to one of 8-bit integers: scales by calibration, and what stands for softmax and norms."""
