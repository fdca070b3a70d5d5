"""ONNX models on Weft: `weft.onnx.load("model.onnx")` is a function of arrays."""

try:
    from weft.frontends.onnx.backend import Backend as Backend
    from weft.frontends.onnx.export.export import export as export
    from weft.frontends.onnx.load import OnnxFunction as OnnxFunction
    from weft.frontends.onnx.load import load as load
except ModuleNotFoundError as error:
    from weft.errors import missing as _missing

    raise _missing(error, "weft.onnx") or error from None
