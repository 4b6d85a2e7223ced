-- Bids per bidder and session.
CREATE VIEW q11 AS
SELECT bidder, count(*) AS n, window_start, window_end
FROM session(TABLE bid PARTITION BY bidder, dateTime, INTERVAL 10 SECONDS)
GROUP BY bidder, window_start, window_end
EMIT FINAL;
