-- closing
SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra
FROM bid AS B
JOIN (
  SELECT highest, window_time(window) AS last
  FROM (SELECT max(price) AS highest, window FROM bid GROUP BY window(dateTime, '10 seconds'))
) AS M
ON B.price = M.highest AND B.dateTime BETWEEN M.last - INTERVAL '9.999999' SECOND AND M.last
