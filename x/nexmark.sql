CREATE PIPELINE nexmark WITH (log = 'sqlite:x.db', to = 'sqlite:x/views.db', checkpoint = 'x/checkpoint');

-- What is read, and a name for each kind of event in it. Files from elsewhere may say any year: no event is refused as too far ahead.
CREATE STREAM events (
    event_type INT,
    person STRUCT<id: BIGINT, name: STRING, emailAddress: STRING, creditCard: STRING, city: STRING, state: STRING, extra: STRING>,
    auction STRUCT<id: BIGINT, itemName: STRING, description: STRING, initialBid: BIGINT, reserve: BIGINT, expires: TIMESTAMP,
        seller: BIGINT, category: BIGINT, extra: STRING>,
    bid STRUCT<auction: BIGINT, bidder: BIGINT, price: BIGINT, channel: STRING, url: STRING, extra: STRING>,
    dateTime TIMESTAMP,
    WATERMARK FOR dateTime AS dateTime - INTERVAL 4 SECONDS
) WITH (topic = 'nexmark', format = 'json', ahead = '36500 days');

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

-- All bids.
CREATE VIEW q0 AS
SELECT auction, bidder, price, dateTime, extra FROM bid;

-- All bids, in another currency.
CREATE VIEW q1 AS
SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid;

-- The bids on some auctions.
CREATE VIEW q2 AS
SELECT auction, price FROM bid WHERE auction % 123 = 0;

-- Who sells things of category 10 in three states.
CREATE VIEW q3 WITH (unbounded = true) AS
SELECT p.name, p.city, p.state, a.id AS auction
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');

-- Per category, the average of what its auctions closed at.
CREATE VIEW q4 WITH (unbounded = true) AS
SELECT category, CAST(avg(final) AS BIGINT) AS average
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction
    WHERE b.dateTime BETWEEN a.dateTime AND a.expires
    GROUP BY a.id, a.category)
GROUP BY category;

-- The auctions with the most bids in each hopping window.
CREATE VIEW q5 AS
SELECT auction, num, window_start, window_end
FROM (
    SELECT auction, count(*) AS num, window_start, window_end
    FROM hop(TABLE bid, dateTime, INTERVAL 2 SECONDS, INTERVAL 10 SECONDS)
    GROUP BY auction, window_start, window_end)
QUALIFY rank() OVER (PARTITION BY window_start, window_end ORDER BY num DESC) = 1
EMIT FINAL;

-- Per seller, the average of what the last ten of his auctions closed at.
CREATE VIEW q6 WITH (unbounded = true) AS
SELECT seller, CAST(avg(final) AS BIGINT) AS average
FROM (
    SELECT seller, id, expires, final
    FROM (
        SELECT a.id, a.seller, a.expires, max(b.price) AS final
        FROM auction a JOIN bid b ON a.id = b.auction
        WHERE b.dateTime BETWEEN a.dateTime AND a.expires
        GROUP BY a.id, a.seller, a.expires)
    QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10)
GROUP BY seller;

-- The highest bids of each tumbling window.
CREATE VIEW q7 AS
SELECT auction, price, bidder, dateTime, extra
FROM tumble(TABLE bid, dateTime, INTERVAL 10 SECONDS)
QUALIFY rank() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) = 1
EMIT FINAL;

-- Who joined and opened an auction in the same tumbling window.
CREATE VIEW q8 AS
SELECT p.id, p.name, p.window_start
FROM (
    SELECT id, name, window_start, window_end FROM tumble(TABLE person, dateTime, INTERVAL 10 SECONDS)
    GROUP BY id, name, window_start, window_end) p
JOIN (
    SELECT seller, window_start, window_end FROM tumble(TABLE auction, dateTime, INTERVAL 10 SECONDS)
    GROUP BY seller, window_start, window_end) a
ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
EMIT FINAL;

-- The winning bid of each auction.
CREATE VIEW q9 WITH (unbounded = true) AS
SELECT a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime, a.expires, a.seller, a.category, a.extra,
    b.auction, b.bidder, b.price, b.dateTime AS bidTime, b.extra AS bidExtra
FROM auction a JOIN bid b ON a.id = b.auction
WHERE b.dateTime BETWEEN a.dateTime AND a.expires
QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime) = 1;

-- All bids, to files by day and minute.
CREATE VIEW q10 AS
SELECT auction, bidder, price, dateTime, extra,
    date_format(dateTime, 'yyyy-MM-dd') AS day, date_format(dateTime, 'HH:mm') AS minute
FROM bid;

CREATE SINK bids INTO 'files:x/q10?partition=day,minute' FROM q10;

-- Bids per bidder and session.
CREATE VIEW q11 AS
SELECT bidder, count(*) AS n, window_start, window_end
FROM session(TABLE bid PARTITION BY bidder, dateTime, INTERVAL 10 SECONDS)
GROUP BY bidder, window_start, window_end
EMIT FINAL;

-- Bids with what a table says of them.
CREATE TABLE side_input (key BIGINT, value STRING, PRIMARY KEY (key)) WITH (topic = 'side_input', format = 'json');

CREATE VIEW q13 AS
SELECT b.auction, b.bidder, b.price, b.dateTime, s.value
FROM (SELECT *, auction % 10000 AS side FROM bid) b
JOIN side_input FOR SYSTEM_TIME AS OF b.dateTime AS s ON b.side = s.key;

-- Bids of some prices, with the time of day and a count of letters.
CREATE VIEW q14 AS
SELECT auction, bidder, 0.908 * price AS price,
    CASE WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
        WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
        ELSE 'otherTime' END AS type,
    dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;

-- Bids, bidders and auctions per day, in total and by price.
CREATE VIEW q15 AS
SELECT date_format(dateTime, 'yyyy-MM-dd') AS day,
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS bids_low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS bids_middle,
    count(*) FILTER (WHERE price >= 1000000) AS bids_high,
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS bidders_low,
    count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS bidders_middle,
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS bidders_high,
    count(DISTINCT auction) AS auctions,
    count(DISTINCT auction) FILTER (WHERE price < 10000) AS auctions_low,
    count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS auctions_middle,
    count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS auctions_high
FROM bid
GROUP BY date_format(dateTime, 'yyyy-MM-dd');

-- The same per channel and day, with the last minute seen.
CREATE VIEW q16 AS
SELECT channel, date_format(dateTime, 'yyyy-MM-dd') AS day, max(date_format(dateTime, 'HH:mm')) AS minute,
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS bids_low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS bids_middle,
    count(*) FILTER (WHERE price >= 1000000) AS bids_high,
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS bidders_low,
    count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS bidders_middle,
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS bidders_high,
    count(DISTINCT auction) AS auctions,
    count(DISTINCT auction) FILTER (WHERE price < 10000) AS auctions_low,
    count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS auctions_middle,
    count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS auctions_high
FROM bid
GROUP BY channel, date_format(dateTime, 'yyyy-MM-dd');

-- Per auction and day: bids by price, and prices.
CREATE VIEW q17 AS
SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day,
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS bids_low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS bids_middle,
    count(*) FILTER (WHERE price >= 1000000) AS bids_high,
    min(price) AS least, max(price) AS most, CAST(avg(price) AS BIGINT) AS average, sum(price) AS total
FROM bid
GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd');

-- The last bid of each bidder on each auction.
CREATE VIEW q18 WITH (unbounded = true) AS
SELECT auction, bidder, price, channel, url, dateTime, extra
FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1;

-- The ten highest bids on each auction.
CREATE VIEW q19 WITH (unbounded = true) AS
SELECT auction, bidder, price, channel, url, dateTime, extra, rank
FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank FROM bid)
WHERE rank <= 10;

-- Bids with their auctions, of category 10.
CREATE VIEW q20 WITH (unbounded = true) AS
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime, b.extra,
    a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS opened, a.expires, a.seller, a.category, a.extra AS itemExtra
FROM bid b JOIN auction a ON b.auction = a.id
WHERE a.category = 10;

-- A number for the channel of each bid.
CREATE VIEW q21 AS
SELECT auction, bidder, price, channel, channel_id
FROM (
    SELECT auction, bidder, price, channel,
        CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(url, '&channel_id=([^&]*)', 1) END AS channel_id
    FROM bid)
WHERE channel_id <> '';

-- The folders in the url of each bid.
CREATE VIEW q22 AS
SELECT auction, bidder, price, channel,
    get(split(url, '/'), 3) AS dir1, get(split(url, '/'), 4) AS dir2, get(split(url, '/'), 5) AS dir3
FROM bid;
