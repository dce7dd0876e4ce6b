"""Groups of benchmarks, one a module."""
