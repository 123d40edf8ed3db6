-- What was seen beside the operations, the earliest first.
SELECT
    evidence.rank AS rank,
    evidence.host AS host,
    evidence.t0 AS t0,
    evidence.t1 AS t1,
    evidence.name AS name,
    evidence.value AS value,
    evidence.text AS text
FROM evidence
WHERE evidence.name <> 'collective_pending'
ORDER BY evidence.t0
LIMIT 100000
