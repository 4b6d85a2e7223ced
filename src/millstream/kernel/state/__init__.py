"""What kernels keep between batches: a store of blobs, tables of rows in segments."""
