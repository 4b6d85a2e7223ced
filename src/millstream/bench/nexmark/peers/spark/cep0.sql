-- Spark has no row patterns: it refuses the word.
SELECT auction, bidder, begun, lowest, risen
FROM bid MATCH_RECOGNIZE (
  PARTITION BY auction, bidder
  ORDER BY dateTime
  MEASURES first_bid.dateTime AS begun, LAST(down.dateTime) AS lowest, up.dateTime AS risen
  ONE ROW PER MATCH
  AFTER MATCH SKIP TO LAST up
  PATTERN (first_bid down+ up)
  DEFINE
    down AS (LAST(down.price, 1) IS NULL AND down.price < first_bid.price) OR down.price < LAST(down.price, 1),
    up AS up.price > LAST(down.price)
)
