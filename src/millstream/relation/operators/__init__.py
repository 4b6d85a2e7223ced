"""The operators of relations, one file each: the node, its checks, and the properties of its rows."""
