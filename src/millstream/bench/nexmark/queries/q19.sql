-- The ten highest bids on each auction.
CREATE VIEW q19 WITH (unbounded = true) AS
SELECT auction, bidder, price, channel, url, dateTime, extra, rank
FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank FROM bid)
WHERE rank <= 10;
