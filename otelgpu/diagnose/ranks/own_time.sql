-- What each rank spent on each kind of operation in each step, by its own clock alone: no two clocks are compared.
-- At most steps × ranks × kinds rows.
SELECT
    step,
    rank,
    kind,
    sum(t1 - t0) AS seconds,
    count(*) AS operations,
    min(t0) AS begin_s,
    max(t1) AS end_s,
    sum(bytes) AS moved,
    max(unit) AS last_unit
FROM ops
WHERE step >= 0
GROUP BY step, rank, kind
