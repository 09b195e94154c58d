"""Fault injection: short training runs in which one party fails, and checks of what the runs make of it.

The faults come from outside: a wrapping task source, a user of the user's own, an HTTP server, a tool server, packages
in the cell's folder, patches in a process of its own, and signals. `cells` lists the cells of the matrix, `run_cells`
runs them.
"""
