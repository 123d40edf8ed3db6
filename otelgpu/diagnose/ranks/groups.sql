-- Members of each group, and how far each has come in it.
SELECT
    grp,
    kind,
    rank,
    count(*) AS operations,
    max(n) AS members,
    max(seq) AS last_seq,
    max(step) AS last_step
FROM ops
WHERE kind IN ('coll', 'p2p')
GROUP BY grp, kind, rank
