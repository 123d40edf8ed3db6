-- What each rank spent on each kind of operation in each step, by its own clock alone: no two clocks are compared.
-- Kinds are numbered as facts.py has them, for millions of texts are slow; whatever exchanges with others is one.
-- At most steps × ranks × kinds rows.
SELECT
    step,
    rank,
    CASE kind
        WHEN 'compute' THEN 0
        WHEN 'input' THEN 1
        WHEN 'host' THEN 2
        WHEN 'file' THEN 3
        WHEN 'copy' THEN 4
        WHEN 'step' THEN 5
        ELSE 6
    END AS kind_code,
    sum(t1 - t0) AS seconds,
    count(*) AS operations,
    min(t0) AS begin_s,
    max(t1) AS end_s,
    sum(bytes) AS moved,
    max(unit) AS last_unit
FROM ops
WHERE step >= 0
GROUP BY step, rank, kind_code
