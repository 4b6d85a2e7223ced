-- The files of Flink cannot be looked up, so the side input is a table with versions, of which it has one.
CREATE TABLE side_input (
  key BIGINT, `value` STRING, since TIMESTAMP(3), WATERMARK FOR since AS since, PRIMARY KEY (key) NOT ENFORCED
) WITH ('connector' = 'filesystem', 'path' = '$SIDE', 'format' = 'csv');

CREATE TEMPORARY VIEW keyed AS SELECT auction, bidder, price, `dateTime`, MOD(auction, 10000) AS key FROM bid;

SELECT B.auction, B.bidder, B.price, B.`dateTime`, S.`value`
FROM keyed AS B JOIN side_input FOR SYSTEM_TIME AS OF B.`dateTime` AS S ON B.key = S.key
