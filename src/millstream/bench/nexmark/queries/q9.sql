-- The winning bid of each auction.
CREATE VIEW q9 WITH (unbounded = true) AS
SELECT a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime, a.expires, a.seller, a.category, a.extra,
    b.auction, b.bidder, b.price, b.dateTime AS bidTime, b.extra AS bidExtra
FROM auction a JOIN bid b ON a.id = b.auction
WHERE b.dateTime BETWEEN a.dateTime AND a.expires
QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime) = 1;
