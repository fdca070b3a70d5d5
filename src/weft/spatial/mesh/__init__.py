"""Meshes of cores: products and chains of operations, scheduled core by core and link by link."""
