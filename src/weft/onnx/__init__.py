"""ONNX models on Weft: `weft.onnx.load("model.onnx")` is a function of arrays."""

try:
    from weft.frontends.onnx.backend import Backend as Backend
    from weft.frontends.onnx.export.export import export as export
    from weft.frontends.onnx.load import OnnxFunction as OnnxFunction
    from weft.frontends.onnx.load import load as load
    from weft.frontends.onnx.session import InferenceSession as InferenceSession
    from weft.frontends.onnx.session import IOBinding as IOBinding
    from weft.frontends.onnx.session import get_available_providers as get_available_providers
    from weft.frontends.onnx.session import get_device as get_device
    from weft.frontends.onnx.session_options import ExecutionMode as ExecutionMode
    from weft.frontends.onnx.session_options import GraphOptimizationLevel as GraphOptimizationLevel
    from weft.frontends.onnx.session_options import RunOptions as RunOptions
    from weft.frontends.onnx.session_options import SessionOptions as SessionOptions
except ModuleNotFoundError as error:
    from weft.errors import missing as _missing

    raise _missing(error, "weft.onnx") or error from None
