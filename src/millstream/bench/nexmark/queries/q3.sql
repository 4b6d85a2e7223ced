-- Who sells things of category 10 in three states.
CREATE VIEW q3 WITH (unbounded = true) AS
SELECT p.name, p.city, p.state, a.id AS auction
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');
