-- closing
SELECT bidder, n, window.start AS session_start, window.end AS session_end
FROM (SELECT bidder, count(*) AS n, session_window AS window FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds'))
