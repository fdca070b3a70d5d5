"""ONNX models: reading files, importing their graphs, and running them in stages."""
