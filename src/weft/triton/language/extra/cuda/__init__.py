"""`triton.language.extra.cuda`: its library of functions, which the CPU has too, and what a program is made of."""

from weft.frontends.triton.runtime.device_programs import gdc_launch_dependents as gdc_launch_dependents
from weft.frontends.triton.runtime.device_programs import gdc_wait as gdc_wait
from weft.frontends.triton.runtime.device_programs import globaltimer as globaltimer
from weft.frontends.triton.runtime.device_programs import num_threads as num_threads
from weft.frontends.triton.runtime.device_programs import num_warps as num_warps
from weft.frontends.triton.runtime.device_programs import smid as smid
from weft.triton.language.extra.cuda import libdevice as libdevice
