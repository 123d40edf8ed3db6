-- Calls of collectives and transfers that had not ended when their rank was looked at.
SELECT
    ops.grp AS grp,
    ops.kind AS kind,
    ops.name AS name,
    ops.rank AS rank,
    ops.seq AS seq,
    max(ops.t1 - ops.t0) AS waited_s
FROM ops
INNER JOIN evidence
    ON ops.job = evidence.job AND ops.rank = evidence.rank AND ops.t0 = evidence.t0
        AND CAST(ops.seq AS DOUBLE) = evidence.value
WHERE evidence.name = 'collective_pending' AND ops.kind IN ('coll', 'p2p') AND ops.seq >= 0
GROUP BY ops.grp, ops.kind, ops.name, ops.rank, ops.seq
