"""From a program and a mesh to the program that each rank runs: shardings, collectives, and when they run."""
