-- Bids with their auctions, of category 10.
CREATE VIEW q20 WITH (unbounded = true) AS
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime, b.extra,
    a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS opened, a.expires, a.seller, a.category, a.extra AS itemExtra
FROM bid b JOIN auction a ON b.auction = a.id
WHERE a.category = 10;
