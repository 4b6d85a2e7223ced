-- The last bid of each bidder on each auction.
CREATE VIEW q18 WITH (unbounded = true) AS
SELECT auction, bidder, price, channel, url, dateTime, extra
FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1;
