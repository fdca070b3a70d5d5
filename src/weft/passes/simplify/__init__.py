"""Algebra on graphs: rules, constants, common and dead ops."""
