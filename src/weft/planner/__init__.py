"""The planner: what a model costs on a fleet of GPUs, and how many of them a service needs.

Data flows one way: a model's configuration becomes a per-rank program (`model`, `program`), its operations get times
(`tables`, `op_costs`, `collectives`), those make a step (`step_costs`), steps make a service (`closed_form`,
`scheduler`, `simulate`), and services are searched and reported (`search`, `plan`, `report`, `page`). Fleets share GPUs
out between plans (`fleet`), training has steps of its own (`training`), and a user's runs correct both (`calibration`).
"""
