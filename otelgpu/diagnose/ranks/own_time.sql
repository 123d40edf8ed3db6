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
    sum(step_sums.seconds) AS seconds,
    sum(step_sums.operations) AS operations,
    min(step_sums.begin_s) AS begin_s,
    max(step_sums.end_s) AS end_s,
    sum(step_sums.moved) AS moved,
    max(step_sums.last_unit) AS last_unit
FROM step_sums
WHERE step >= 0
GROUP BY step, rank, kind_code
