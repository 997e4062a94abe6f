class ClusterError(Exception):
    """A sentence about what stands in the way."""
