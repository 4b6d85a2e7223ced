-- window_time, the last moment of a window, makes this a join within a span of time, whose state is dropped as time goes on.
SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra
FROM bid AS B
JOIN (
  SELECT MAX(price) AS highest, window_time
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end, window_time
) AS M
ON B.price = M.highest AND B.`dateTime` BETWEEN M.window_time - INTERVAL '9.999' SECOND AND M.window_time
