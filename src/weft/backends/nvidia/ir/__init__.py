"""The nvidia dialect: layouts, async copies, barriers, warp roles, ring buffers, MMA ops; facts about ops."""
