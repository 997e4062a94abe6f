"""A pool, a flow and a framework for Pumasi, each in one module: see docs/extending.md."""
