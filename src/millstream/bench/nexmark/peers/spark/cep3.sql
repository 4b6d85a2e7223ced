-- Spark has no row patterns: it refuses the word.
SELECT auction, bidder, dropped, difference
FROM bid MATCH_RECOGNIZE (
  PARTITION BY auction, bidder
  ORDER BY dateTime
  MEASURES down.dateTime AS dropped, first_bid.price - down.price AS difference
  ONE ROW PER MATCH
  AFTER MATCH SKIP PAST LAST ROW
  PATTERN (first_bid above* down) WITHIN INTERVAL '5' SECOND
  DEFINE above AS above.price > first_bid.price - 50, down AS down.price < first_bid.price - 50
)
