-- The auctions with the most bids in each hopping window.
CREATE VIEW q5 AS
SELECT auction, num, window_start, window_end
FROM (
    SELECT auction, count(*) AS num, window_start, window_end
    FROM hop(TABLE bid, dateTime, INTERVAL 2 SECONDS, INTERVAL 10 SECONDS)
    GROUP BY auction, window_start, window_end)
QUALIFY rank() OVER (PARTITION BY window_start, window_end ORDER BY num DESC) = 1
EMIT FINAL;
