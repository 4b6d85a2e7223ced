-- The official query, but that a bid at a window's very end is not in it. A join within a span of time, by window_time, would keep
-- less, and took twice the time.
SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra
FROM bid AS B
JOIN (
  SELECT MAX(price) AS highest, window_start, window_end
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end
) AS M
ON B.price = M.highest AND B.`dateTime` >= M.window_start AND B.`dateTime` < M.window_end
