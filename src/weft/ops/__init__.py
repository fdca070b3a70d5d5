"""The graph dialect: whole-tensor ops, one class each. Importing this package fills the registry."""

from weft.ops import dot as dot
from weft.ops import movement as movement
from weft.ops import reduce as reduce
from weft.ops import shape as shape
