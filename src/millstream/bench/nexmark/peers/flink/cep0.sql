-- In the condition of a row Flink's LAST(down.price) is that row's own price where the row is a down itself, and has no PREV.
SELECT auction, bidder, begun, lowest, risen
FROM bid MATCH_RECOGNIZE (
  PARTITION BY auction, bidder
  ORDER BY `dateTime`
  MEASURES first_bid.`dateTime` AS begun, LAST(down.`dateTime`) AS lowest, up.`dateTime` AS risen
  ONE ROW PER MATCH
  AFTER MATCH SKIP TO LAST up
  PATTERN (first_bid down+ up)
  DEFINE
    down AS (LAST(down.price, 1) IS NULL AND down.price < first_bid.price) OR down.price < LAST(down.price, 1),
    up AS up.price > LAST(down.price)
)
