-- The highest bids of each tumbling window.
CREATE VIEW q7 AS
SELECT auction, price, bidder, dateTime, extra
FROM tumble(TABLE bid, dateTime, INTERVAL 10 SECONDS)
QUALIFY rank() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) = 1
EMIT FINAL;
