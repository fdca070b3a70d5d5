"""Triton's names for keeping files between runs."""

from weft.frontends.triton.runtime.file_cache import FileCacheManager as FileCacheManager
from weft.frontends.triton.runtime.file_cache import default_cache_dir as default_cache_dir
from weft.frontends.triton.runtime.file_cache import get_cache_manager as get_cache_manager

CacheManager = FileCacheManager
