"""From a graph to layers: what the matrix units multiply, what the vector unit computes of it."""
