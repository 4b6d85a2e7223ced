CREATE TEMPORARY VIEW arriving AS SELECT bidder, PROCTIME() AS arrived FROM bid;

SELECT bidder, COUNT(*) AS n
FROM TABLE(TUMBLE(TABLE arriving, DESCRIPTOR(arrived), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end
