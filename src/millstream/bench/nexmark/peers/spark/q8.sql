-- closing
-- A join of two aggregates, as the query is usually written, gives no rows and no error: what an aggregate gives when its window
-- closes is late for the join.
SELECT P.id, P.name, P.window.start AS window_start
FROM (SELECT id, name, window(dateTime, '10 seconds') AS window FROM person) AS P
LEFT SEMI JOIN (SELECT seller, window(dateTime, '10 seconds') AS window FROM auction) AS A
ON P.id = A.seller AND P.window = A.window
