-- Spark has no row patterns: it refuses the word.
SELECT auction, bidder, begun, ended, average
FROM bid MATCH_RECOGNIZE (
  PARTITION BY auction, bidder
  ORDER BY dateTime
  MEASURES FIRST(low.dateTime) AS begun, LAST(low.dateTime) AS ended, SUM(low.price) / COUNT(low.price) AS average
  ONE ROW PER MATCH
  AFTER MATCH SKIP PAST LAST ROW
  PATTERN (low+ other)
  DEFINE low AS AVG(low.price) < 10000
)
