"""The kernels themselves, a file an operator. Each is a pure function of its state, the changes that came, and the watermark."""
