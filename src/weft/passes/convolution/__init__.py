"""Convolutions in graphs: as matrix products, over channels that lie innermost, with folded norms."""
