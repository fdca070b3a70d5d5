"""Convolutions in graphs: as matmuls, over channels that lie innermost, with folded norms."""
