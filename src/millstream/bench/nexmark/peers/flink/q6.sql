-- The official query has AVG … OVER (ROWS BETWEEN 10 PRECEDING AND CURRENT ROW), which Flink refuses over rows that change.
-- The ten that closed last are taken by rank instead.
SELECT seller, AVG(price) AS average
FROM (
  SELECT seller, price,
    ROW_NUMBER() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS place
  FROM (
    SELECT A.id, A.seller, A.expires, B.price,
      ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime`) AS best
    FROM auction AS A JOIN bid AS B ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
  )
  WHERE best <= 1
)
WHERE place <= 10
GROUP BY seller
