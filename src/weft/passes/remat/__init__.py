"""Rematerialization: which values a backward pass keeps and which it computes again, as a problem on plain numbers."""
