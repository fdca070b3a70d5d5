"""`triton.language.extra.hip.libdevice`: the same functions as without a vendor's name."""

from weft.frontends.triton.libdevice.functions import *  # noqa: F403
