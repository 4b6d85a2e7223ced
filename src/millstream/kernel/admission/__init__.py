"""Admission: every record of a partition is admitted, late, duplicate, future, malformed or erased, in the order of offsets.

The verdict on a record depends on the records before it in its partition and on nothing else: not on where batches end,
not on any clock. The watermark at a record is the highest time at earlier offsets less the stream's delay, or what a
heartbeat has raised it to. A record below it, by more than the allowed lateness, is late. One that claims to be from the
future moves nothing, be it a heartbeat.

There is one entrance, a gate (:mod:`~millstream.kernel.admission.gate`) for what a batch holds of a partition. Where it stands:

- *where records are read*, on both engines: the watermark so far comes with the task. If a record comes that only Spark can decode, it
  shuts, and a gate with the same watermark lets in the rest *where records are packed*, as soon as the whole batch is decoded.
- *where records are packed*, for a feed that is not judged (``Feed.judged``), for it has neither time nor numbers of producers.
- *in a stage of its own* (``Chain.staged``), where state is needed: what number each producer has come to. So it is for whoever has
  no watermark before the batch, too: a verification, a trial, and a checkpoint that was made before sources kept it.
"""
