"""Weights of few bits: weight-only quantisation, recognised and fused dequantisation."""
