"""Triton's names for what goes wrong when a kernel is launched."""

from weft.frontends.triton.errors import AutotunerError as AutotunerError
from weft.frontends.triton.errors import InterpreterError as InterpreterError
from weft.frontends.triton.errors import OutOfResources as OutOfResources
from weft.frontends.triton.errors import PTXASError as PTXASError
from weft.frontends.triton.errors import TritonError as TritonError
