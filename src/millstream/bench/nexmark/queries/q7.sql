-- The highest bids of each tumbling window. A bid's place in the log tells it from others that are equal.
CREATE TEMPORARY VIEW placed AS
SELECT bid.auction, bid.price, bid.bidder, dateTime, bid.extra, _partition AS part, _offset AS place
FROM events WHERE event_type = 2;

CREATE VIEW q7 AS
SELECT auction, price, bidder, dateTime, extra
FROM (
    SELECT auction, price, bidder, dateTime, extra, part, place, window_start, window_end
    FROM tumble(TABLE placed, dateTime, INTERVAL 10 SECONDS)
    GROUP BY auction, price, bidder, dateTime, extra, part, place, window_start, window_end)
QUALIFY rank() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) = 1
EMIT FINAL;
