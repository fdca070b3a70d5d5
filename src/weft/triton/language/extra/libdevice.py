"""`triton.language.extra.libdevice`."""

from weft.frontends.triton.libdevice.functions import *  # noqa: F403
