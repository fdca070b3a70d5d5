"""Kernel → kernel before layouts: loops, algebra, views, narrow operands, pointer raising."""
