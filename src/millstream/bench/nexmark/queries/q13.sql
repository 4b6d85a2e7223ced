-- Bids with what a table says of them.
CREATE TABLE side_input (key BIGINT, value STRING, PRIMARY KEY (key)) WITH (topic = 'side_input', format = 'json');

CREATE VIEW q13 AS
SELECT b.auction, b.bidder, b.price, b.dateTime, s.value
FROM (SELECT *, auction % 10000 AS side FROM bid) b
JOIN side_input FOR SYSTEM_TIME AS OF b.dateTime AS s ON b.side = s.key;
