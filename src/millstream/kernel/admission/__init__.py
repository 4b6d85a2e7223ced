"""Admission: every record of a partition is admitted, late, duplicate, future or malformed, in the order of offsets.

The verdict on a record depends on the records before it in its partition and on nothing else: not on where batches end,
not on any clock. The watermark at a record is the highest time at earlier offsets less the stream's delay, or what a
heartbeat has raised it to. A record below it, by more than the allowed lateness, is late. One that claims to be from the
future moves nothing, be it a heartbeat.

There are four entrances (:mod:`~millstream.kernel.admission.entrances`), and all end in the same verdicts:

- *at once*, where records are packed: a feed that is not judged (``Feed.judged``), for it has neither time nor numbers of producers;
- *the gate*, where the source reads a partition from front to end (``Chain.early``): the watermark so far comes with the task;
- *waiting*, behind a gate that shut at a record that only Spark can decode: until the whole batch is decoded;
- *with state*, a stage of its own (``Chain.staged``), which keeps the watermark and what number each producer has come to.
"""
