-- What is read, and a name for each kind of event in it. Files from elsewhere may say any year: no event is refused as too far ahead.
CREATE STREAM events (
    event_type INT,
    person STRUCT<id: BIGINT, name: STRING, emailAddress: STRING, creditCard: STRING, city: STRING, state: STRING, extra: STRING>,
    auction STRUCT<id: BIGINT, itemName: STRING, description: STRING, initialBid: BIGINT, reserve: BIGINT, expires: TIMESTAMP,
        seller: BIGINT, category: BIGINT, extra: STRING>,
    bid STRUCT<auction: BIGINT, bidder: BIGINT, price: BIGINT, channel: STRING, url: STRING, extra: STRING>,
    dateTime TIMESTAMP,
    WATERMARK FOR dateTime AS dateTime - INTERVAL 4 SECONDS
) WITH (topic = '${topic}', format = 'json', ahead = '36500 days');

CREATE TEMPORARY VIEW person AS
SELECT person.id, person.name, person.emailAddress, person.creditCard, person.city, person.state, dateTime, person.extra
FROM events WHERE event_type = 0;

CREATE TEMPORARY VIEW auction AS
SELECT auction.id, auction.itemName, auction.description, auction.initialBid, auction.reserve, dateTime, auction.expires,
    auction.seller, auction.category, auction.extra
FROM events WHERE event_type = 1;

CREATE TEMPORARY VIEW bid AS
SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, dateTime, bid.extra
FROM events WHERE event_type = 2;
