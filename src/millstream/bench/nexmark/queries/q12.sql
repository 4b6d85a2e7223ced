-- Bids per bidder by processing time, which is when the log took them.
CREATE STREAM events (
    event_type INT,
    bid STRUCT<bidder: BIGINT>,
    WATERMARK FOR _append_time AS _append_time
) WITH (topic = '${topic}', format = 'json');

CREATE VIEW q12 AS
SELECT bid.bidder AS bidder, count(*) AS n, window_start, window_end
FROM tumble(TABLE events, _append_time, INTERVAL 10 SECONDS)
WHERE event_type = 2
GROUP BY bid.bidder, window_start, window_end
EMIT FINAL;
