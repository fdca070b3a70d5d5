"""ONNX models on Weft: `weft.onnx.load("model.onnx")` is a function of arrays."""

from weft.frontends.onnx.backend import Backend as Backend
from weft.frontends.onnx.load import OnnxFunction as OnnxFunction
from weft.frontends.onnx.load import load as load
