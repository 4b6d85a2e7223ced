-- mode: update
-- key: bidder, _window
SELECT bidder, count(*) AS n, window AS _window
FROM bid GROUP BY bidder, window(current_timestamp(), '10 seconds')
