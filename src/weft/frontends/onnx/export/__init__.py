"""Graphs written as ONNX models: one writer for each op that ONNX can say."""
