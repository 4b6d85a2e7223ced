-- mode: update
SELECT category, sum(final) div count(*) AS average
FROM (
  SELECT A.id, A.category, MAX(B.price) AS final
  FROM auction AS A JOIN bid AS B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  GROUP BY A.id, A.category
)
GROUP BY category
