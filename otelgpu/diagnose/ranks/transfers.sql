-- Collectives without clocks: the shortest call of one is its transfer, what the others took longer they waited, and
-- who had the shortest came last (of two alike the lower rank). At most a row for each step, group and rank that ever
-- was the last.
-- Seconds and rank are compared as one whole number (picoseconds, 31 bits): pairs take ClickHouse twice as long.
-- Calls whose number in their group is not known are taken together, for each step of a rank.
SELECT
    step,
    grp,
    kind,
    CAST(shortest % 2147483648 AS INTEGER) AS last_rank,
    count(*) AS calls,
    sum(transfer) AS transfer_s,
    sum(total - members * transfer) AS waited_s,
    min(members) AS least_members
FROM (
    SELECT
        step,
        grp,
        kind,
        min(CAST(floor((t1 - t0) * 1e12) AS Int128) * 2147483648 + rank) AS shortest,
        min(t1 - t0) AS transfer,
        sum(t1 - t0) AS total,
        count(*) AS members
    FROM ops
    WHERE kind IN ('coll', 'p2p') AND step >= 0 AND seq >= 0
    GROUP BY step, grp, kind, seq
    UNION ALL
    SELECT
        step,
        grp,
        kind,
        min(CAST(floor(seconds * 1e12) AS Int128) * 2147483648 + rank) AS shortest,
        min(seconds) AS transfer,
        sum(seconds) AS total,
        count(*) AS members
    FROM (
        SELECT step, grp, kind, rank, sum(t1 - t0) AS seconds
        FROM ops
        WHERE kind IN ('coll', 'p2p') AND step >= 0 AND seq < 0
        GROUP BY step, grp, kind, rank
    ) AS unnumbered
    GROUP BY step, grp, kind
) AS collectives
GROUP BY step, grp, kind, last_rank
