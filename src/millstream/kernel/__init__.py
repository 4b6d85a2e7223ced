"""Kernels: pure functions (state, changes) → (state, changes) on data frames. Nothing here runs Spark, or asks it.

Each room uses only those before it:

- :mod:`~millstream.kernel.zset` and :mod:`~millstream.kernel.arrow`: the algebra of weighted rows, and frames packed;
- ``state``: what is kept of a bucket between batches;
- ``aggregates``: what aggregates are made of;
- ``pattern``: how row patterns are searched for;
- ``exchange``: what goes from stage to stage, and to the driver;
- :mod:`~millstream.kernel.watermarks` and :mod:`~millstream.kernel.kernel`: what a kernel is, and its watermarks;
- ``operators``: the kernels themselves, a file each;
- ``admission``: which records come in, by which entrance;
- :mod:`~millstream.kernel.host`: runs the stages.
"""
