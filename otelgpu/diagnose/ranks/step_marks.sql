-- Steps in which a rank did something beside training, as their names say.
SELECT ops.step AS step, ops.rank AS rank, ops.name AS name
FROM ops
WHERE ops.kind = 'step' AND ops.step >= 0 AND ops.name IN ('checkpoint', 'evaluation')
GROUP BY ops.step, ops.rank, ops.name
