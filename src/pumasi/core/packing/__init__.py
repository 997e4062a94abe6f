"""How the planner finds the best placement: `group` within one group of nodes, `domains` across racks or zones."""
