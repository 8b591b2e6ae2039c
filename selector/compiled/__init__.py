"""The selector on a CPU, compiled at run time by numba: the same bits as the numpy reference, faster."""
