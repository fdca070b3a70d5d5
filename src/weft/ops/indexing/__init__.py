"""Ops that read or write at computed places: gather, scatter, search, sort."""
